// Gates by channel in `fused`: the order of the channels of Q, K and S in threadgroup memory, and the tables of decays.
#pragma once

#include "common/linear/kernels/fused/setup.h"

namespace {

// A channel is a row of S, and a column of Q and K. By channel the warpgroups of the outputs replace Q and K in a stage
// by their products with decays, and store column `channel` at the position position_of(channel), in the same panel. A
// thread reads eight neighbouring channels of a token at once, 16 bytes, and multiplies four of them in each of two
// steps. The positions are those that the operands of a product have for these four. S has the same order of rows.
DEVICE int position_of(int channel) {
  if constexpr (!BY_CHANNEL) return channel;
  return channel / 32 * 32 + channel / 4 % 2 * 16 + channel / 2 % 2 * 8 + channel / 8 % 4 * 2 + channel % 2;
}
DEVICE int channel_of(int position) {
  if constexpr (!BY_CHANNEL) return position;
  return position / 32 * 32 + position / 2 % 4 * 8 + position / 16 % 2 * 4 + position / 8 % 2 * 2 + position % 2;
}

/// By channel: the decays of a thread's two rows of each panel.
using RowDecays = float[PANELS][2];

/// Rows of the table of decays of a chunk: over each quarter (16 tokens), and over each half.
enum DecayRow { QUARTER = 0, FIRST_HALF = 4, SECOND_HALF = 5 };
/// Returns a row of the table: 64 * PANELS floats, by channel.
DEVICE float* decays_of(int row) { return reinterpret_cast<float*>(memory + layout.decays) + row * (64 * PANELS); }

/// Returns the diagonals that a warpgroup of the outputs writes in one of two successive chunks: six floats of each
/// thread (scores.h).
DEVICE float* diagonals(unsigned turn, int group) {
  return reinterpret_cast<float*>(memory + layout.diagonals) + (turn % 2 * 2 + group) * (6 * WARPGROUP);
}

}  // namespace
