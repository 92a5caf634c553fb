// The cpu dialect on x86 cores with AMX: eight tile registers, each with 16 rows of 64 bytes, and products of tiles.
#pragma once

/// The argument of __builtin_ia32_tile_loadconfig: all eight registers have their largest size. The call fills the
/// registers with zeros.
struct alignas(64) TileShapes {
  unsigned char palette = 1, start_row = 0, reserved[14] = {};
  unsigned short row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
