"""How faithful a topic's values stay where a format or a type cannot express everything: choices, never accidents."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args, get_type_hints


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """What happens to values that a format cannot express as they are. `docs/data-fidelity.md` explains each choice.

    `non_finite`: NaN and infinity on their way into JSON, which has no words for them.
        "refuse" is an `EncodeError`; "null" writes `null`. (On the way in, JSON text that spells them is no JSON and
        always refused; MessagePack and fixed-width records carry them unchanged.)
    `big_integers`: integers outside -2**63 .. 2**64-1 in JSON, both ways.
        "preserve" keeps every digit; "refuse" is an error, for topics whose other readers would round them.
        (MessagePack cannot hold them: always an `EncodeError`.)
    `invalid_utf8`: bytes that are no UTF-8, in values read as `str` text.
        "refuse" is a `DecodeError`; "preserve" keeps them as lone surrogates that are written back as the same bytes.
        (Strings inside JSON and MessagePack are refused.)
    `unknown_fields`: fields of an input object that the stage's type does not name.
        "drop" leaves them out of what the stage writes; "keep" carries them over, byte for byte; "refuse" is a
        `DecodeError`, at any depth.
    `null_documents`: a value that is the JSON text `null` or MessagePack's nil, which Python cannot tell from a
        tombstone. "refuse" is a `DecodeError`; "tombstone" reads it as one, and it is then written as one.

    Raises ValueError, naming all of them, for values that are none of the choices.
    """

    non_finite: Literal["refuse", "null"] = "refuse"
    big_integers: Literal["preserve", "refuse"] = "preserve"
    invalid_utf8: Literal["refuse", "preserve"] = "refuse"
    unknown_fields: Literal["drop", "keep", "refuse"] = "drop"
    null_documents: Literal["refuse", "tombstone"] = "refuse"

    def __post_init__(self) -> None:
        choices = {name: get_args(hint) for name, hint in get_type_hints(Fidelity).items()}
        mistakes = [
            f"{f.name}={getattr(self, f.name)!r} (choose one of {', '.join(map(repr, choices[f.name]))})"
            for f in fields(self)
            if getattr(self, f.name) not in choices[f.name]
        ]
        if mistakes:
            raise ValueError(f"Fidelity has no such choice: {'; '.join(mistakes)}")
