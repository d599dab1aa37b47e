"""URLs whose query holds secrets: how they show, how stars are filled, what is taken out of texts."""

from __future__ import annotations

from copy import deepcopy
from time import process_time

import pytest
from pydantic import ValidationError

from bridges.http.settings import HttpActionSettings
from bridges.resource.settings.secret import hider
from broker.config.secret_text import SecretUrl, with_stored
from broker.config.secrets import without_user
from tests.support.processor import is_within


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/in/${clientid}", "/in/${clientid}"),
        ("/in?", "/in?"),
        ("/in?api_key=abc123&d=${payload.id}", "/in?api_key=******&d=${payload.id}"),
        ("/in?code=a=b==&code=${qos}${clientid}", "/in?code=******&code=${qos}${clientid}"),
        ("/in?tok${qos}&dG9rZW4=&=x", "/in?******&******&=******"),
        ("wss://h/p?a=1?b=2", "wss://h/p?a=******"),
    ],
)
def test_values_of_a_query_show_as_stars(url: str, shown: str) -> None:
    assert SecretUrl(url).shown == shown
    assert SecretUrl(url).has_stars is False
    assert SecretUrl(shown).has_stars is ("*" in shown)
    assert with_stored({"path": [shown]}, {"path": [url]}) == {"path": [url]}
    assert str(SecretUrl(url)) == "******"


def test_stars_stand_for_the_stored_values_of_their_parameters_in_order() -> None:
    stored = "/in?key=one&d=1&key=two"
    assert with_stored("/other?d=2&key=******&key=******", stored) == "/other?d=2&key=one&key=two"
    assert with_stored("/in?key=new&key=******", stored) == "/in?key=new&key=one"
    assert with_stored("/in?token=******", stored) == "/in?token=******"


def test_values_of_a_query_are_taken_out_of_texts() -> None:
    settings = HttpActionSettings.model_validate(
        {"path": "/in?key=abc123&format=json&sig=a%2Fb4&device=dev-${clientid}&limit=500"}
    )
    said = "400: abc123, json, a/b4, a%2Fb4 and 500"
    assert hider(settings)(said) == "400: ******, json, ******, ****** and 500"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:p/w@h:1/a?k=v", "http://******@h:1/a"),
        ("u:p?w@h", "******@h"),
        ("postgresql+psycopg2://u@h/d", "postgresql+psycopg2://******@h/d"),
        ("h:1883", "h:1883"),
    ],
)
def test_an_address_in_a_message_has_no_user(url: str, shown: str) -> None:
    assert without_user(url) == shown


def test_a_default_is_copied_with_its_settings() -> None:
    settings = HttpActionSettings()
    assert deepcopy(settings) == settings


def test_a_url_with_many_parameters_is_filled_in_linear_time_and_a_long_one_is_refused() -> None:
    stored = "/in?" + "a=x&" * 100_000
    began_s = process_time()
    assert with_stored("/in?" + "a=******&" * 100_000, stored) == stored
    # 100,000 removals from the front of a list take longer.
    assert is_within(process_time() - began_s, 2)
    with pytest.raises(ValidationError, match="expected at most 16,384 characters, got 400,004"):
        HttpActionSettings.model_validate({"path": stored})
