"""Options of RocksDB, with their reasons."""

from __future__ import annotations

from dataclasses import dataclass

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    WriteOptions,
)

_MIB = 1024 * 1024
# One that is written to, and others that are being written out as tables.
_WRITE_BUFFERS = 4


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory limits of RocksDB, in bytes: of each write buffer, mostly two of four, and of blocks that were read."""

    write_buffer: int = 32 * _MIB
    block_cache: int = 64 * _MIB


USUAL_MEMORY = Memory()


def primary(memory: Memory) -> Options:
    """Options of the broker's own instance. It opens logs that read back whole only: the default leaves out everything
    behind any damage."""
    options = _common(memory.block_cache)
    options.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
    options.create_if_missing(True)
    options.set_max_background_jobs(2)
    options.set_write_buffer_size(memory.write_buffer)
    options.set_max_write_buffer_number(_WRITE_BUFFERS)
    options.set_max_total_wal_size(256 * _MIB)
    options.set_target_file_size_base(64 * _MIB)
    options.set_max_bytes_for_level_base(512 * _MIB)
    options.set_bytes_per_sync(_MIB)
    options.set_keep_log_file_num(4)
    options.set_max_open_files(512)
    return options


def secondary() -> Options:
    """Options of an instance that follows the primary. It keeps every file open: the primary's compactions delete files
    that are still being read here."""
    options = _common(USUAL_MEMORY.block_cache)
    options.set_max_open_files(-1)
    options.set_keep_log_file_num(2)
    return options


def without_stalls() -> WriteOptions:
    """Writes fail at once where RocksDB would make them wait: it waits with the interpreter lock held, which would stop
    the broker's loop. The writer thread waits instead."""
    options = WriteOptions()
    options.no_slowdown = True
    return options


def _common(block_cache: int) -> Options:
    options = Options(raw_mode=True)
    options.set_compression_type(DBCompressionType.lz4())
    tables = BlockBasedOptions()
    tables.set_block_cache(Cache(block_cache))
    tables.set_block_size(32 * 1024)
    tables.set_bloom_filter(10, False)
    options.set_block_based_table_factory(tables)
    return options
