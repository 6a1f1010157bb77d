"""Why a value could not be decoded or encoded, said without a byte of the value.

msgspec's messages mostly speak of types and of field names that stand in the user's own types, but some quote
the value ("Invalid enum value 'secret'"), and checks in user types (`__post_init__`) say whatever they like. So only
messages that are known to be harmless pass; all others are replaced. The original exception is not chained either,
because a traceback would print it.
"""

from __future__ import annotations

import re

import msgspec

from millstream.processor.errors import DecodeError, EncodeError

# A path is built from the field names of the type; keys of dicts appear as `[...]` and positions as numbers.
_PATH = re.compile(r" - at (?:`key` in )?`\$[^`]*`$")
_HARMLESS = re.compile(
    r"Expected `[^`]*`(, got `[^`]*`| of (at (least|most) )?length (<= |>= )?\d+| (<|<=|>|>=) -?[\d.e+-]+"
    r"| that's a multiple of -?[\d.e+-]+| matching regex .*)?"
    r"|Expected `array` of .*"
    r"|Object missing required field `[^`]*`"
    r"|Invalid (RFC3339 encoded (datetime|date|time)|ISO8601 duration|UUID|UUID bytes|decimal string"
    r"|base64 encoded string|epoch timestamp|MessagePack timestamp)"
    r"|Invalid UTF-8 encoded string"
    r"|(Integer value|Number|Timestamp|Duration) (is )?out of range ?"
    r"|(JSON|MessagePack data) is malformed: [a-z -]+ \(byte \d+\)"
    r"|(Encoding|Decoding) objects of type [\w.]+ is unsupported"
    r"|Only dicts with str-like or (int|number)-like keys are supported"
)
_TRUNCATED = "Input data was truncated"


def undecodable(codec: str, error: Exception) -> DecodeError:
    """What to report for a row whose decoding raised `error`."""
    return DecodeError(f"{codec}: {_decode_reason(error)}")


def unencodable(codec: str, value: object, error: Exception) -> EncodeError:
    """What to report for an object whose encoding raised `error`."""
    return EncodeError(f"{codec}: {_encode_reason(error)} (in a value of type {type(value).__qualname__})")


def _decode_reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the value is nested too deeply"
    if not isinstance(error, msgspec.DecodeError):
        return f"the type's own code raised {type(error).__name__}"
    text = str(error)
    path = _PATH.search(text)
    where = path.group() if path else ""
    said = text.removesuffix(where)
    if error.__cause__ is not None:
        return f"a check of the type's own refused the value with {type(error.__cause__).__name__}{where}"
    if said == _TRUNCATED:
        return "the value ends too early, or an escaped character in it is incomplete"
    if _HARMLESS.fullmatch(said):
        return said + where
    if said.startswith("Object contains unknown field"):
        return f"the object has a field that the type does not name{where}"
    return f"the value is none of those that the type allows{where}"


def _encode_reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the value is nested too deeply, or contains itself"
    if isinstance(error, UnicodeEncodeError):
        return "a string holds half of a surrogate pair, which UTF-8 cannot express"
    if isinstance(error, OverflowError):
        return "an integer does not fit into 64 bits; write it as a string, or use JSON"
    text = str(error)
    if _HARMLESS.fullmatch(text):
        remedy = "; convert it with .item() or .tolist()" if " type numpy." in text else ""
        return text + remedy
    if text.startswith("Exceeds the limit"):
        return "an integer has more digits than Python converts to text (sys.set_int_max_str_digits)"
    return f"the value raised {type(error).__name__}"
