"""Upper bounds as polynomials in the input's size n, with coefficients that are never negative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_HIGHEST: Final = 3


@dataclass(frozen=True, slots=True)
class Bound:
    """At most the sum of ``terms[d] * n ** d``. Degrees above three count as infinite for every n."""

    terms: tuple[float, ...]

    @classmethod
    def of(cls, constant: float, per_n: float = 0.0) -> Bound:
        """A constant and a part that grows with n."""
        return cls((constant, per_n, *(0.0,) * (_HIGHEST - 1)))

    def __mul__(self, other: Bound | float) -> Bound:
        if not isinstance(other, Bound):
            return Bound(tuple(term * other if term else 0.0 for term in self.terms))
        terms = [0.0] * len(self.terms)
        for d, a in enumerate(self.terms):
            for e, b in enumerate(other.terms):
                if a and b:
                    terms[min(d + e, _HIGHEST)] += a * b if d + e <= _HIGHEST else float("inf")
        return Bound(tuple(terms))

    def __add__(self, other: Bound) -> Bound:
        return Bound(tuple(a + b for a, b in zip(self.terms, other.terms, strict=True)))

    def __or__(self, other: Bound) -> Bound:
        """A bound of whichever is larger."""
        return Bound(tuple(map(max, self.terms, other.terms)))

    def at(self, n: int) -> float:
        """The bound for one size."""
        return sum((term * float(n) ** degree for degree, term in enumerate(self.terms) if term), 0.0)

    def largest(self, budget: float, ceiling: int) -> int:
        """The largest n, up to ``ceiling``, for which the bound stays within the budget; 0 when there is none."""
        low, high = 0, ceiling
        while low < high:
            middle = (low + high + 1) // 2
            if self.at(middle) <= budget:
                low = middle
            else:
                high = middle - 1
        return low


NONE: Final = Bound.of(0)
ONE: Final = Bound.of(1)
INPUT: Final = Bound.of(0, 1)
