// Makes the lists of key blocks and the bits of a caller's mask (mask_bits.h). A threadgroup makes one list, and the
// bits of the list's rows.
//
// Grid: (lists of a head, heads, sequences); 1 instead of heads, or sequences, that share lists.
#include "common/attention/kernels/mask_bits.h"

#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/mask.h"
#include "common/kernel/cpu.h"

namespace {

constexpr int BITS = BLOCK_C / 4;  // of a word
constexpr unsigned long long FULL = BITS == 64 ? ~0ull : (1ull << BITS % 64) - 1;
constexpr bool RULES = CAUSAL || !KEYS_ARE_DEFAULT || !MASK_IS_NONE;  // whether a hook may hide pairs
using MaskWord = MaskWordOf<mask_word_bytes(BLOCK_C)>::type;
static_assert(BLOCK_C % 16 == 0 && BLOCK_C <= 256);

INLINE int min(int a, int b) { return a < b ? a : b; }
INLINE int max(int a, int b) { return a > b ? a : b; }

}  // namespace

extern "C" void mask_bits(const MaskBitsParams* params, const Threadgroup* group) {
  const MaskBitsParams& p = *params;
  const int head = static_cast<int>(group->index[1]), batch = static_cast<int>(group->index[2]);
  const ScoreContext context{batch, head, p.q_heads, p.q_len, p.kv_len, p.data};
  const int first_query = p.lists.first_query + static_cast<int>(group->index[0] * BLOCK_R);
  const int first_row = max(first_query, 0), end_row = min(first_query + int{BLOCK_R}, p.q_len);
  const unsigned char* const mask = p.mask + batch * p.strides[0] + head * p.strides[1];
  const long long list = number_of_list(p.lists, batch, head, first_query);
  int* const entries = p.lists.entries + list * p.lists.capacity;
  auto* const words = static_cast<MaskWord*>(p.bits.words);
  int count = 0;
  entries[0] = 1;
  for (int block = 0; block < p.lists.capacity; ++block) {
    const int first_key = block * int{BLOCK_C}, keys = min(p.kv_len - first_key, BLOCK_C);
    if (first_key >= visible_keys(end_row - 1, context).end) break;
    if (first_key + keys <= visible_keys(first_row, context).begin) continue;
    bool some = false, all = true;
    for (int row = first_row; row < end_row; ++row) {
      const unsigned char* const bytes = mask + row * p.strides[2];
      const KeyRange range = visible_keys(row, context);
      unsigned long long of_row[4] = {};
      for (int i = 0; i < keys; ++i) {
        const int key = first_key + i;
        bool seen = bytes[key * p.strides[3]] != 0;
        if (RULES) seen = seen && range.begin <= key && key < range.end && visible(row, key, context);
        of_row[i % 8 / 2] |= static_cast<unsigned long long>(seen) << (i / 8 * 2 + i % 2);
      }
      const long long first = mask_word_index(p.bits, batch, head, row, first_key, p.kv_len, BLOCK_C);
      for (int i = 0; i < 4; ++i) {
        words[first + i] = static_cast<MaskWord>(of_row[i]);
        some |= of_row[i] != 0;
        all &= of_row[i] == FULL;
      }
    }
    if (some) entries[count++] = 2 * block + !all;
  }
  p.lists.counts[list] = count;
}
