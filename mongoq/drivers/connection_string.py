"""Connection strings: a client made of one, and what the driver says of one that it cannot use, without secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote, unquote_plus

from pymongo.errors import ConfigurationError
from pymongo.uri_parser import validate_options

from mongoq.errors import ArgumentInvalid

SCHEMES = ("mongodb://", "mongodb+srv://")
REFUSAL_TEXT = "the driver cannot use this connection string"
UNESCAPED = re.compile(r"\A[^@/?]*+[@/?].*@", re.DOTALL)
"""A rest of a connection string in which another separator stands before the last ``@``."""
ADVICE_TEXT = "user and password must be percent-encoded where they hold '@', '/', '?' or ':' (urllib.parse.quote_plus)"
HIDDEN_MARK = "…"
MAX_MESSAGE_LENGTH = 1_000
"""Characters of what the driver says that a message holds."""
SHORT_SECRET_LENGTH = 4
"""Characters below which a secret is hidden only where it stands as a word of its own: ``me`` is part of ``name``."""
PROPERTIES_OPTION = "authmechanismproperties"
SECRET_OPTIONS = frozenset({"tlscertificatekeyfilepassword", "proxyusername", "proxypassword"})
TIMEOUTS_PART = re.compile(r" \(configured timeouts: [^()]*+\)")
_SEPARATORS = re.compile(r"[/:@?&=,;#\[\]]+")


def make_client(kind: Callable[..., Any], uri: Any, **options: Any) -> Any:
    """Make a client of a driver's ``kind`` from a connection string; sends nothing, but may ask the DNS.

    Raises:
        ArgumentInvalid: the string cannot be used, with the driver's sentence and without credentials.
    """
    if not isinstance(uri, str):
        raise ArgumentInvalid("uri", f"a connection string such as 'mongodb://localhost', not {type(uri).__name__}")
    if not uri.startswith(SCHEMES):
        raise ArgumentInvalid("uri", "a connection string begins with mongodb:// or mongodb+srv://")
    try:
        return kind(uri, **options)
    except Warning:  # the caller's filter of warnings has made an error of it
        raise
    except Exception as error:  # the driver raises what comes, such as KeyError and errors of ssl
        problem = explain_refusal(error, uri)
    # behind the block, so that no traceback shows the driver's error beside it: that may quote the string
    raise ArgumentInvalid("uri", problem)


def has_option(uri: str, name: str) -> bool:
    """Say whether a connection string gives this option, with a value that the driver does not leave out."""
    values = [value for key, value in _parse_options(uri) if key.lower() == name.lower()]
    if not values:
        return False
    try:
        validate_options({name: unquote_plus(values[-1] or "")}, warn=False)
    except (ValueError, TypeError, ConfigurationError):
        return False
    return True


def list_unknown_options(uri: str) -> list[str]:
    """Return the names of the options of a connection string that the driver does not know, and leaves out."""
    return [key for key, value in _parse_options(uri) if value is not None and not _is_known(key)]


def _is_known(name: str) -> bool:
    try:
        validate_options({name: ""}, warn=False)
    except ConfigurationError as error:
        return not str(error).startswith("Unknown option")
    except (ValueError, TypeError):  # the option is known, and wants a value
        pass
    return True


def explain_refusal(error: BaseException, uri: str) -> str:
    """Return why the driver cannot use a connection string, and what to do where user or password look unescaped."""
    message = redact_error(error, uri)
    advice = "" if "must be escaped" in message else advise_escaping(uri)
    return f"{REFUSAL_TEXT}: {message}{advice}"


def advise_escaping(uri: str) -> str:
    """Return what to do where user or password look unescaped, to go behind a sentence; else nothing."""
    return f"; {ADVICE_TEXT}" if UNESCAPED.match(uri.partition("://")[2]) else ""


def list_hosts(client: Any, uri: str) -> str:
    """Return the addresses of a client's servers; one that may be a part of an unescaped password is hidden."""
    hosts = ", ".join(f"{host}:{port}" for host, port in sorted(client.topology_description.server_descriptions()))
    return redact_error(Exception(hosts), uri) if hosts and advise_escaping(uri) else hosts


def redact_error(error: BaseException, uri: str) -> str:
    """Return what an error of the driver says, with all that may be a credential of the connection string hidden."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    text = text.partition(", full error: ")[0]  # behind it is the reply, with clocks and signatures
    for secret in sorted(set(_find_secrets(uri)), key=len, reverse=True):
        around = (r"(?<!\w)", r"(?!\w)") if len(secret) < SHORT_SECRET_LENGTH else ("", "")
        text = re.sub(re.escape(secret).join(around), HIDDEN_MARK, text)
    return text.strip().rstrip(".") or type(error).__name__


def _find_secrets(uri: str) -> Iterator[str]:
    """Yield what may be a secret, as it stands there and decoded.

    All before the last ``@`` counts, since a password that is not escaped may hold any character; so does a port that
    is no number, and an option without a value: both may be the rest of a password.
    """
    rest = uri.partition("://")[2] or uri
    before, _, behind = rest.rpartition("@")
    secrets = [before, *_split(before)]
    hosts = re.split(r"[/?]", behind, maxsplit=1)[0].split(",")
    ports = [host.rpartition(":")[2] for host in hosts if ":" in host]
    secrets += [port for port in ports if not port.isdigit()]
    for key, value in _parse_options(uri):
        if value is None:
            secrets.append(key)
        elif key.lower() in SECRET_OPTIONS:
            secrets += [value, *_split(value)]
        elif key.lower() == PROPERTIES_OPTION:  # such as AWS_SESSION_TOKEN:…; the names are no secrets
            for pair in unquote(value).split(","):
                secret = pair.partition(":")[2] or pair
                secrets += [secret, *_split(secret)]
    for part in secrets:
        for form in {part, unquote(part), unquote_plus(part)} - {""}:
            yield from (form, form.lower())  # the driver writes hosts in small letters


def _split(text: str) -> list[str]:
    return [*_SEPARATORS.split(text), *_SEPARATORS.split(unquote_plus(text)), *text.split(":", 1)]


def _parse_options(uri: str) -> Iterator[tuple[str, str | None]]:
    """Yield the options of a connection string; one without a value has ``None``."""
    for pair in re.split("[&;]", uri.partition("?")[2]):
        key, equals, value = pair.partition("=")
        yield key, value if equals else None


def list_connection_errors(client: Any, error: BaseException, uri: str) -> str:
    """Return what became of the last connection to each server, or else what the driver's error says."""
    servers = client.topology_description.server_descriptions().values()
    errors = sorted({TIMEOUTS_PART.sub("", str(server.error)) for server in servers if server.error is not None})
    return redact_error(Exception("; ".join(errors)[:MAX_MESSAGE_LENGTH] or str(error)[:MAX_MESSAGE_LENGTH]), uri)
