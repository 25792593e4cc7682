"""Checks of orders: each record once, and counts as even as chance makes them."""

import math

import numpy as np


def assert_covers(indices, num_records):
    assert indices.dtype == np.int64
    assert indices.shape == (num_records,)
    assert (np.bincount(indices, minlength=num_records) == 1).all()


def assert_even(counts):
    """Pearson's chi-square of counts that should be equal: within 5 sigma, above and below.

    Counts of records by positions have fixed rows and columns, which the degrees of freedom tell.
    """
    counts = np.asarray(counts, float)
    expected = counts.mean()
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = math.prod(extent - 1 for extent in counts.shape)
    assert abs(chi_square - freedom) < 5 * math.sqrt(2 * freedom), (chi_square, freedom)
