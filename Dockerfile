# The millstream image: see docs/container.md.
#
#   docker build -t millstream .            (podman: add --format docker, or the HEALTHCHECK is dropped)
#
# Any Debian or Ubuntu base with Python 3.11 or newer and its venv module will do.
ARG BASE=docker.io/library/python:3.13-slim-bookworm

# ---- The program with its dependencies, in a virtual environment that is copied as a whole. ------------------------
FROM ${BASE} AS build
# pip's own settings, for builds behind a mirror or without a network; wheels in deploy/wheels are found in any case.
ARG PIP_INDEX_URL
ARG PIP_CERT
ARG PIP_NO_INDEX
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_FIND_LINKS=/source/deploy/wheels
WORKDIR /source
COPY deploy/wheels deploy/wheels
COPY pyproject.toml README.md LICENSE ./
# Dependencies first and alone, so that a change of the program does not install them again.
RUN python3 -m venv /opt/millstream \
 && python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' > requirements.txt \
 && /opt/millstream/bin/pip install --only-binary :all: --requirement requirements.txt
COPY processor processor
COPY connectors connectors
COPY gpu_offload gpu_offload
COPY loadgen loadgen
RUN /opt/millstream/bin/pip install --no-deps .

# ---- What runs. ----------------------------------------------------------------------------------------------------
FROM ${BASE}
# An init as process 1: it passes signals on from the first moment (the kernel ignores SIGTERM to a process 1 that has
# not asked for it yet) and reaps what killed workers leave behind. Its version is the base's.
# hadolint ignore=DL3008
RUN command -v tini > /dev/null \
 || { apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*; }
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin millstream
COPY --from=build /opt/millstream /opt/millstream
COPY deploy/millstream-container deploy/millstream-healthy /opt/millstream/bin/
# The processor that kernels are compiled for: one that every machine of this architecture is, so that what is compiled
# here is never compiled again. `native` is the building machine's.
ARG KERNEL_CPU=generic
ENV PATH=/opt/millstream/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CPU_NAME=${KERNEL_CPU} \
    MILLSTREAM_KERNELS=/opt/millstream/kernels \
    MILLSTREAM_HTTP=0.0.0.0:9100
RUN mkdir "${MILLSTREAM_KERNELS}" && NUMBA_CACHE_DIR="${MILLSTREAM_KERNELS}" millstream-container warm
WORKDIR /app
USER 10001:10001
EXPOSE 9100
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 CMD ["millstream-healthy"]
ENTRYPOINT ["tini", "--", "millstream-container"]
CMD ["--help"]
