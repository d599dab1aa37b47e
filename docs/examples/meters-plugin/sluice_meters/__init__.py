"""Functions for meters."""

from __future__ import annotations

from itertools import pairwise
from math import log
from typing import Annotated, Any

from rules.functions.plugin import Int, Items, Number, Refusal, SparkForm, choice, function

Scale = Annotated[str, choice("celsius", "kelvin")]


@function(returns="double", spark=(SparkForm(("double",), "({0} * 1.8D + 32D)", "float"),))
def fahrenheit(celsius: Number) -> float:
    """Degrees Celsius as degrees Fahrenheit."""
    return celsius * 1.8 + 32.0


@function(returns="double")
def dew_point(temperature: Number, humidity: Number, scale: Scale = "celsius") -> float:
    """The dew point by Magnus, of a temperature in degrees Celsius and a relative humidity in percent."""
    if not 0 < humidity <= 100:
        raise Refusal(f"a relative humidity is above 0 and at most 100 percent, not {humidity}")
    gamma = log(humidity / 100) + 17.62 * temperature / (243.12 + temperature)
    celsius = 243.12 * gamma / (17.62 - gamma)
    return celsius if scale == "celsius" else celsius + 273.15


@function(returns="array")
def deltas(readings: Items) -> list[Any]:
    """The differences between neighbours of an array of numbers."""
    if not all(type(reading) in (int, float) for reading in readings):
        raise Refusal("every reading must be a number")
    return [later - earlier for earlier, later in pairwise(readings)]


@function(returns="string")
def serial(number: Int) -> str:
    """A meter's serial number with its check digit, as 0000012-7."""
    digits = f"{number:07}"
    check = (
        sum(
            int(digit) * weight
            for digit, weight in zip(digits, (3, 1, 3, 1, 3, 1, 3), strict=False)
        )
        % 10
    )
    return f"{digits}-{(10 - check) % 10}"
