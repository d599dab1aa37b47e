"""Errors of pydantic about an object as sentences: member, value, and the expected form."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from broker.config.problems import expectation, hint, is_secret_at, settings_at, shown, types_in
from broker.config.secrets import NO_TEXT
from broker.core.errors import MOST_PROBLEMS, Invalid, Problem

Location = tuple[int | str, ...]
_Model = TypeVar("_Model", bound=BaseModel)

# Suffixes of pydantic's locations for a member that may be one of several types.
_CHOICES = frozenset({"int", "str", "bool", "float", "dict[str,str]"})


def parsed(
    model: type[_Model],
    spec: Any,
    what: str,
    *,
    ignored: Container[str] = (),
    tags: Iterable[str] = (),
    pointer: str = "",
) -> _Model:
    """An object as it was sent, checked.

    Args:
        model: what it must fit.
        spec: the object; members in ``ignored`` are left out.
        what: the sentence of the error: ``the validation cannot be saved``.
        tags: see ``spec_problems``.
        pointer: see ``spec_problems``.

    Raises:
        Invalid: with every problem.
    """
    sent = (
        {name: value for name, value in spec.items() if name not in ignored}
        if isinstance(spec, Mapping)
        else spec
    )
    try:
        return model.model_validate(sent)
    except ValidationError as error:
        raise Invalid(what, spec_problems(error, model, tags, pointer)) from None


def spec_problems(
    error: ValidationError, model: type[BaseModel], tags: Iterable[str] = (), pointer: str = ""
) -> list[Problem]:
    """A problem for each wrong member, up to one more than an error names.

    Args:
        error: what pydantic raised.
        model: model that the object was validated with.
        tags: values of ``type`` that distinguish kinds of parts; pydantic puts them into places.
        pointer: of the object itself, where it stands inside a larger body.
    """
    known_tags = frozenset(tags)
    words_by_place: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False):
        if len(words_by_place) > MOST_PROBLEMS:
            break
        place = _place(_without_choices(detail["loc"], model), known_tags)
        words = words_by_place.setdefault(pointer + "".join(f"/{part}" for part in place), [])
        words.append(
            _reason(detail, place, model)
            if not words
            else expectation(detail).removeprefix("expected ")
        )
    return [Problem(" or ".join(words), at) for at, words in words_by_place.items()]


def _place(location: Location, tags: frozenset[str]) -> Location:
    """The location without what pydantic adds to it: the tag behind an item or a codec, the choice at the end."""
    if location and location[-1] in _CHOICES and len(location) > 1:
        location = location[:-1]
    return tuple(
        part for at, part in enumerate(location) if not (part in tags and _is_tagged(location[:at]))
    )


def _without_choices(location: Location, model: type[BaseModel]) -> Location:
    """The location without what pydantic puts behind a member that may be of several kinds: which of them it tried."""
    parts: list[int | str] = []
    models: list[type[BaseModel]] = [model]
    has_choice = False
    for part in location:
        field = next(
            (
                model_here.model_fields[part]
                for model_here in models
                if part in model_here.model_fields
            ),
            None,
        )
        if field is None and has_choice:
            has_choice = False
            continue
        parts.append(part)
        if field is not None:
            kinds = types_in(field.annotation)
            models = [
                kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)
            ]
            has_choice = bool(models) and len(_alternatives(field.annotation)) > 1
    return tuple(parts)


def _alternatives(annotation: Any) -> list[Any]:
    """The kinds that a member may be of, but for None."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) not in (Union, UnionType):
        return [] if annotation is NoneType else [annotation]
    return [kind for alternative in get_args(annotation) for kind in _alternatives(alternative)]


def _is_tagged(above: Location) -> bool:
    """True if parts of different kinds are in this place: items of a list, or a codec."""
    return bool(above) and (
        isinstance(above[-1], int) or above[-1] in ("payload_decoder", "payload_encoder")
    )


def _reason(detail: ErrorDetails, place: Location, model: type[BaseModel]) -> str:
    member = _dotted(place)
    kind = detail["type"]
    context: dict[str, Any] = detail.get("ctx", {})
    if kind == "missing":
        return f"{member} is required"
    if kind == "extra_forbidden":
        above = tuple(str(part) for part in place[:-1])
        siblings = settings_at(model, above) if above else model.model_fields
        return f"{member} is not known{hint(str(place[-1]), siblings)}"
    if kind == "union_tag_not_found":
        return f"{member}.{_discriminator(context)} is required"
    if kind == "union_tag_invalid":
        expected = _any_of(context["expected_tags"].split(", "))
        return f"{member}.{_discriminator(context)} is {context['tag']!r}; expected {expected}"
    if kind in ("value_error", "assertion_error"):
        return f"{member}: {context.get('error', detail['msg'])}"
    is_secret = kind == NO_TEXT or is_secret_at(model, tuple(map(str, place)))
    return f"{member} is {shown(detail['input'], is_secret=is_secret)}; {expectation(detail)}"


def _discriminator(context: Mapping[str, Any]) -> str:
    """The member that distinguishes the members of a union; ``type`` where a function does."""
    name: str = context["discriminator"].strip("'")
    return name if name.isidentifier() else "type"


def _any_of(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _dotted(place: Location) -> str:
    """``checks[0].schema``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".") or "the object"
