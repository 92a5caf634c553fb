// The cpu dialect on x86 cores with AMX: eight registers of 16 rows of 64 bytes, and products of what is in them.
#pragma once

/// What __builtin_ia32_tile_loadconfig takes: all eight as large as they can be. It leaves zeros in them.
struct alignas(64) TileShapes {
  unsigned char palette = 1, start_row = 0, reserved[14] = {};
  unsigned short row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
