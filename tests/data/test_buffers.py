"""Memory is lent, and comes back only when nothing looks into it."""

import ctypes
import gc
import mmap

import numpy as np

from headrace.data.buffers import BufferPool


def test_a_buffer_starts_on_a_page_and_has_the_size_asked_for() -> None:
    pool = BufferPool()
    for num_bytes in (1, 4096, 4097, 1_000_003):
        array = pool.lease(num_bytes).array()

        assert (array.dtype, array.shape) == (np.uint8, (num_bytes,))
        assert array.ctypes.data % mmap.PAGESIZE == 0


def test_memory_comes_back_with_the_last_view() -> None:
    pool = BufferPool()
    array = pool.lease(10_000).array()
    view = array[5:100].view(np.int8)[::3].reshape(4, 8)

    del array
    gc.collect()
    assert pool.idle_bytes == 0

    del view
    assert pool.idle_bytes >= 10_000


def test_a_buffer_of_about_the_size_is_used_again() -> None:
    """A little smaller fits; much smaller would waste it; larger does not fit."""
    pool = BufferPool()
    address = pool.lease(100_000).array().ctypes.data

    assert pool.lease(90_000).array().ctypes.data == address
    kept = pool.lease(2000).array()
    assert kept.ctypes.data != address
    larger = pool.lease(200_000).array()
    assert larger.ctypes.data != address


def test_idle_memory_is_bounded_and_the_oldest_goes_first() -> None:
    """When batches grow, the pool keeps what they need now, not what they needed once."""
    pool = BufferPool(max_idle_bytes=1 << 20)
    for _ in range(2):
        leases = [pool.lease(1 << 18) for _ in range(8)]
        leases.clear()
        assert pool.idle_bytes == 1 << 20

    address = pool.lease(1 << 20).array().ctypes.data

    assert pool.idle_bytes == 1 << 20
    assert pool.lease(1 << 20).array().ctypes.data == address


def test_more_than_the_pool_may_keep() -> None:
    pool = BufferPool(max_idle_bytes=1000)
    pool.lease(50_000)

    assert pool.idle_bytes == 0


def test_a_closed_pool_keeps_nothing() -> None:
    """Arrays that are still out stay good; their memory goes to the system with them."""
    pool = BufferPool()
    array = pool.lease(5000).array()
    pool.lease(5000)
    array[:] = 9

    pool.close()

    assert pool.idle_bytes == 0 and (array == 9).all()
    del array
    assert pool.idle_bytes == 0


def test_abandoned_memory_is_never_unmapped() -> None:
    """The kernel may still write there, so the array's bytes outlive its owner."""
    pool = BufferPool()
    lease = pool.lease(5000)
    array = lease.array()
    array[:] = 7
    alias = np.frombuffer((ctypes.c_uint8 * 5000).from_address(array.ctypes.data), np.uint8)

    lease.abandon()
    del lease, array
    gc.collect()

    assert pool.idle_bytes == 0 and (alias == 7).all()
