"""Decimals by their digits are those that ``decimal`` makes, or are left to it."""

from __future__ import annotations

from decimal import Context, Decimal, Inexact, InvalidOperation

from bson import Decimal128
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import DecimalType

from mongoq.spark.types.column import decimal_array

NO_COEFFICIENT = (10**34 | (6176 - 32) << 113).to_bytes(16, "little")
"""One more than 34 digits hold, times ``10 ** -32``; its sign and all above its exponent are zero."""

numbers = st.builds(Decimal128.from_bid, st.binary(min_size=16, max_size=16)) | st.builds(
    lambda digits, exponent: Decimal128(Decimal(digits).scaleb(exponent)),
    st.integers(-(10**34) + 1, 10**34 - 1) | st.integers(-1000, 1000),
    st.integers(-40, 10),
)


def plainly(value: Decimal128 | None, type: DecimalType) -> Decimal | None:
    if value is None:
        return None
    context = Context(prec=type.precision, traps=[Inexact, InvalidOperation])
    number = value.to_decimal()
    if not number.is_finite():
        raise Inexact
    return context.quantize(number, Decimal(1).scaleb(-type.scale))


@given(
    values=st.lists(numbers | st.none(), max_size=5),
    precision=st.integers(1, 38),
    share=st.floats(0, 1),
)
@example(values=[Decimal128("99.99"), Decimal128("-99.99"), None], precision=4, share=0.5)
@example(values=[Decimal128("100")], precision=4, share=0.5)
@example(values=[Decimal128("1.230")], precision=4, share=0.5)
@example(values=[Decimal128("0E-6176"), Decimal128("-0")], precision=4, share=0.5)
@example(values=[Decimal128("0E+10")], precision=38, share=1.0)
@example(values=[Decimal128.from_bid(NO_COEFFICIENT)], precision=1, share=0.0)
def test_what_is_made_of_the_digits_is_exact(values: list[Decimal128 | None], precision: int, share: float) -> None:
    type = DecimalType(precision, int(precision * share))
    array = decimal_array(values, type)
    try:
        plain = [plainly(value, type) for value in values]
    except (Inexact, InvalidOperation):
        assert array is None
        return
    if array is not None:
        array.validate(full=True)
        assert array.to_pylist() == plain
    else:
        assert any(value is not None and nobody_writes(value, type.scale) for value in values)


def nobody_writes(value: Decimal128, scale: int) -> bool:
    """Say whether the number is left to ``decimal``: shifted by more than 38 digits, or of more than 34, read as 0."""
    number = value.to_decimal()
    exponent = number.as_tuple().exponent
    return not isinstance(exponent, int) or abs(exponent + scale) > 38 or Decimal128(number).bid != value.bid
