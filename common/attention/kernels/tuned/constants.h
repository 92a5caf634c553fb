// Constants and vectors of the kernels of the family `tuned`. A kernel includes this file within its namespace.
#pragma once

constexpr TunedLayout layout(HEAD_DIM, BLOCK_R, BLOCK_C, VECTOR_WIDTH, TILE_VECTORS, TILE_ROWS, BF16_DOT, COPY_K);
constexpr int VECTORS = layout.vectors;
constexpr int PANEL = layout.panel;
constexpr int MAIN_ROWS = layout.main_rows;
constexpr int TAIL_ROWS = layout.tail_rows;
constexpr int ROW_WORDS = layout.row_words;
constexpr int WORD_BYTES = 4, ROW_BYTES = ROW_WORDS * WORD_BYTES;
constexpr int DEPTH = BF16_DOT ? HEAD_DIM / 2 : HEAD_DIM;  // words along a row of Q or K
constexpr int LINE_BYTES = 64;
constexpr int ELEMENT_BYTES = IN_TYPE == F32 ? 4 : 2;
constexpr int ROW_LINES = (HEAD_DIM * ELEMENT_BYTES + LINE_BYTES - 1) / LINE_BYTES;
// Pairs of bf16 are not scaled, because scaling would round Q again. With BF16_DOT scores are scaled in the softmax, or
// before the hook.
constexpr bool SCALE_Q = !BF16_DOT;
constexpr bool SCALE_LATE = BF16_DOT && SCORE_IS_IDENTITY;
// Whether scores are in base 4 (a weight is 4^score, not e^score) when they leave the register tile. Maxima are in the
// same base.
constexpr bool BASE_4 = SCALE_Q && SCORE_IS_IDENTITY;
static_assert(COPY_K || PAGES_ARE_DEFAULT, "a register tile of K reads rows that lie apart by the same distance");
static_assert((COPY_K && !BF16_DOT) || ROTATE_IS_IDENTITY, "K is turned on its way to a block of floats");
constexpr int ROWS_AHEAD = 4;  // with ASK_AHEAD, the copy of a row prefetches the row that is this many rows further on

using Floats = Vector<float, VECTOR_WIDTH>;
using Ints = Vector<int, VECTOR_WIDTH>;
using Bits = Vector<unsigned, VECTOR_WIDTH>;
