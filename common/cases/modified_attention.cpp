#include "common/cases/modified_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>

#include "common/base/divided_up.h"
#include "common/base/error.h"

namespace attn {
namespace {

constexpr uint64_t table_seed = 7;  // fixed, because tables belong to a case and not to the inputs of a run

}  // namespace

struct ModifiedAttention::Tables {
  std::vector<float> slopes, sinks;
  RopeTable angles;                     // begins at the first position of any query or key
  std::vector<int> starts;              // the first key of each sequence
  std::vector<int> lengths, documents;  // documents: begin and end of each key's document
  std::vector<unsigned> blocks;         // in the layout of ModifierData::blocks
};

ModifiedAttention::ModifiedAttention(Modifiers modifiers, const FlashConfig& config)
    : modifiers_(std::move(modifiers)), shape_(config.shape), dtype_(config.dtype) {
  if (modifiers_.prefix > 0 && shape_.causal)
    throw std::invalid_argument("a prefix is allowed only if shape.causal is false");
  const AttentionShape& s = shape_;
  Tables tables;
  std::mt19937_64 random(table_seed);
  std::normal_distribution<float> normal;
  const auto up_to = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1)); };
  if (modifiers_.alibi) {
    for (const double slope : alibi_slopes(s.q_heads)) tables.slopes.push_back(static_cast<float>(slope));
  }
  if (modifiers_.sinks) {
    for (int64_t head = 0; head < s.q_heads; ++head) tables.sinks.push_back(normal(random));
  }
  if (modifiers_.lengths) {  // the first sequence has kv_len keys, the others have kv_len / 2 to kv_len keys
    for (int64_t batch = 0; batch < s.batch; ++batch) {
      tables.lengths.push_back(static_cast<int>(batch == 0 ? s.kv_len : s.kv_len - up_to(s.kv_len / 2)));
    }
  }
  if (modifiers_.starts) {
    // Padding keys: none in the first sequence, kv_len / 2 in the second, 0 to kv_len / 2 in each other sequence.
    std::mt19937_64 start_random(table_seed);  // a second generator, so that `starts` does not change the other tables
    for (int64_t batch = 0; batch < s.batch; ++batch) {
      const auto most = static_cast<uint64_t>(s.kv_len / 2);
      const uint64_t start = batch < 2 ? static_cast<uint64_t>(batch) * most : start_random() % (most + 1);
      tables.starts.push_back(static_cast<int>(start));
    }
  }
  if (modifiers_.documents > 0) {
    for (int64_t begin = 0, end = 0; begin < s.kv_len; begin = end) {
      end = std::min(s.kv_len, begin + 1 + up_to(2 * modifiers_.documents - 2));
      for (int64_t key = begin; key < end; ++key) {
        tables.documents.insert(tables.documents.end(), {static_cast<int>(begin), static_cast<int>(end)});
      }
    }
  }
  if (modifiers_.rotary.in_kernel()) {
    tables.angles = rope_table(modifiers_.rotary.config, std::max(s.q_len, s.kv_len),
                               modifiers_.rotary.position + std::min<int64_t>(s.kv_len - s.q_len, 0));
  }
  if (modifiers_.block_sparse > 0) {
    std::mt19937_64 block_random(table_seed);  // a second generator, so that other modifiers do not change the blocks
    const int64_t count = divided_up(s.kv_len, sparse_block), words = sparse_words(static_cast<int>(s.kv_len));
    tables.blocks.resize(static_cast<size_t>(count * words));
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t column = 0; column < count; ++column) {
        const bool drawn = static_cast<int64_t>(block_random() % 100) < modifiers_.block_sparse;
        if (drawn || row == column) tables.blocks[static_cast<size_t>(row * words + column / 32)] |= 1u << column % 32;
      }
    }
  }
  if (modifiers_.bias != "none") {
    bias_elements_ = modifiers_.bias_has('k') ? (s.kv_len + 3) / 4 * 4 : 1;
    const std::pair<char, int64_t> axes[] = {{'b', s.batch}, {'h', s.q_heads}, {'q', s.q_len}};
    for (int axis = 2; axis >= 0; --axis) {
      if (!modifiers_.bias_has(axes[axis].first)) continue;
      bias_strides_[axis] = bias_elements_;
      bias_elements_ *= axes[axis].second;
    }
  }
  tables_ = std::make_shared<Tables>(std::move(tables));
}

// Returns a value between -2 and 2, computed from the element's number. The tensor may have as many elements as there
// are scores, so this class does not store the tensor.
float ModifiedAttention::bias_at(int64_t element) const {
  uint64_t bits = static_cast<uint64_t>(element) * 0x9E3779B97F4A7C15u;
  bits = (bits ^ bits >> 32) * 0xD6E8FEB86659FD93u;
  return static_cast<float>(static_cast<double>(bits >> 40) * 0x1p-22 - 2);
}

std::vector<ModifierLayout::Table> ModifiedAttention::tables(const float* bias) const {
  const auto table = [](int ModifierData::* offset, const auto& elements, int64_t before = 0) -> ModifierLayout::Table {
    return {offset, static_cast<int64_t>(elements.size()), elements.data(), 0, before};
  };
  // Angles of queries before key 0.
  const int64_t before = std::max<int64_t>(shape_.q_len - shape_.kv_len, 0) * modifiers_.rotary.config.rotary_dim / 2;
  return {table(&ModifierData::alibi_slopes, tables_->slopes),
          table(&ModifierData::sinks, tables_->sinks),
          table(&ModifierData::lengths, tables_->lengths),
          table(&ModifierData::starts, tables_->starts),
          table(&ModifierData::documents, tables_->documents),
          table(&ModifierData::blocks, tables_->blocks),
          {&ModifierData::bias, bias_elements_ > 0 ? bias_elements_ + bias_slack : 0, bias},
          table(&ModifierData::cosines, tables_->angles.cosines, before),
          table(&ModifierData::sines, tables_->angles.sines, before)};
}

std::string ModifiedAttention::unable() const {
  try {
    ModifierLayout({}, tables(nullptr));
  } catch (const BadInput& error) {
    return error.what();
  }
  return {};
}

AttentionHooks ModifiedAttention::hooks() const {
  const Modifiers& m = modifiers_;
  if (const std::string reason = unable(); !reason.empty()) throw BadInput(reason);
  AttentionHooks hooks = modifier_hooks(m, dtype_);
  std::vector<float> bias(static_cast<size_t>(bias_elements_ > 0 ? bias_elements_ + bias_slack : 0));
  for (int64_t i = 0; i < bias_elements_; ++i) bias[static_cast<size_t>(i)] = bias_at(i);
  ModifierData head{};
  head.alibi = m.alibi;
  head.bias_kind = m.bias_kind();
  head.soft_cap = static_cast<float>(m.soft_cap);
  std::copy(std::begin(bias_strides_), std::end(bias_strides_), head.bias_strides);
  const std::vector<ModifierLayout::Table> all = tables(bias.data());
  hooks.data = ModifierLayout(head, all).filled(all);
  std::string on = fmt::format("bias={} documents={} block_sparse={}", m.bias, m.documents, m.block_sparse);
#define ATTN_MODIFIER(type, name, ...) on += fmt::format(" {}={}", #name, m.name);
#define ATTN_MODIFIER_TABLE(element, name, ...) on += fmt::format(" {}={}", #name, m.name);
#define ATTN_DRAWN_TABLE(element, name, ...)
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  hooks.name = std::move(on);
  const auto self = std::make_shared<ModifiedAttention>(*this);
  hooks.reference = [self](std::span<double> scores, int64_t batch, int64_t head_index, int64_t q) {
    const auto [begin, end] = self->range(batch, q);
    for (size_t i = 0; i < scores.size(); ++i) {
      const auto k = static_cast<int64_t>(i);
      scores[i] = begin <= k && k < end && self->unmasked(q, k) ? self->changed(scores[i], batch, head_index, q, k)
                                                                : -std::numeric_limits<double>::infinity();
    }
  };
  if (m.sinks) {
    hooks.sink = [self](int64_t, int64_t head_index) {
      return static_cast<double>(self->tables_->sinks[static_cast<size_t>(head_index)]);
    };
  }
  return hooks;
}

std::pair<int64_t, int64_t> ModifiedAttention::range(int64_t batch, int64_t q) const {
  auto [begin, end] = range_of(q, modifiers_.lengths ? tables_->lengths[static_cast<size_t>(batch)] : shape_.kv_len);
  if (modifiers_.starts) begin = std::max<int64_t>(begin, tables_->starts[static_cast<size_t>(batch)]);
  return {begin, end};
}

std::pair<int64_t, int64_t> ModifiedAttention::range_of(int64_t q, int64_t keys) const {
  const Modifiers& m = modifiers_;
  const int64_t own = own_key(q);
  int64_t begin = 0, end = shape_.causal ? own + 1 : shape_.kv_len;
  if (m.prefix > 0) end = std::max(own + 1, m.prefix);
  const auto [first, last] = window(own);
  if (m.global_tokens == 0) {
    begin = std::max(begin, first);
    end = std::min(end, last);
  }
  end = std::min(end, keys);
  if (m.documents > 0) {
    const auto key = static_cast<size_t>(std::max<int64_t>(own, 0));
    begin = std::max<int64_t>(begin, tables_->documents[2 * key]);
    end = std::min<int64_t>(end, tables_->documents[2 * key + 1]);
  }
  return {begin, std::clamp<int64_t>(end, 0, shape_.kv_len)};
}

std::pair<int64_t, int64_t> ModifiedAttention::window(int64_t own) const {
  const Modifiers& m = modifiers_;
  return {m.window_left >= 0 ? own - m.window_left : 0, m.window_right >= 0 ? own + m.window_right + 1 : shape_.kv_len};
}

bool ModifiedAttention::block_seen(int64_t own, int64_t block) const {
  if (modifiers_.block_sparse == 0) return true;
  const int64_t row = std::max<int64_t>(own, 0) / sparse_block, words = sparse_words(static_cast<int>(shape_.kv_len));
  return (tables_->blocks[static_cast<size_t>(row * words + block / 32)] >> block % 32 & 1) != 0;
}

bool ModifiedAttention::unmasked(int64_t q, int64_t k) const {
  const Modifiers& m = modifiers_;
  const int64_t own = own_key(q);
  const auto [first, last] = window(own);
  const bool in_window = m.global_tokens == 0 || std::min(own, k) < m.global_tokens || (first <= k && k < last);
  return in_window && block_seen(own, k / sparse_block);
}

void ModifiedAttention::for_ranges(int64_t q, const std::function<void(int64_t begin, int64_t end)>& add) const {
  const Modifiers& m = modifiers_;
  const int64_t own = own_key(q);
  const auto add_blocks = [&](int64_t begin, int64_t end) {
    if (m.block_sparse == 0 && begin < end) add(begin, end);
    for (int64_t key = begin; m.block_sparse > 0 && key < end;) {
      const int64_t next = std::min(end, (key / sparse_block + 1) * sparse_block);
      if (block_seen(own, key / sparse_block)) add(key, next);
      key = next;
    }
  };
  const auto [begin, end] = range_of(q, shape_.kv_len);
  if (m.global_tokens == 0 || own < m.global_tokens) return add_blocks(begin, end);
  // Three ranges: the keys in the window, the global keys before the window, and the global keys after the window.
  const auto [first, last] = window(own);
  const int64_t global = std::min(end, m.global_tokens);
  add_blocks(std::max(begin, first), std::min(end, last));
  add_blocks(begin, std::min(global, first));
  add_blocks(std::max(begin, last), global);
}

double ModifiedAttention::visible_pairs() const {
  // The number of queries that see each key, without the rules of lengths and starts. The loop stores each key's count
  // minus the count of the key before; the prefix sums of these differences are the counts.
  std::vector<int64_t> seen_by(static_cast<size_t>(shape_.kv_len) + 1);
  for (int64_t q = 0; q < shape_.q_len; ++q) {
    for_ranges(q, [&](int64_t begin, int64_t end) {
      ++seen_by[static_cast<size_t>(begin)];
      --seen_by[static_cast<size_t>(end)];
    });
  }
  std::partial_sum(seen_by.begin(), seen_by.end(), seen_by.begin());
  std::vector<double> pairs(seen_by.size());  // pairs[n]: pairs of the first n keys
  for (size_t key = 0; key + 1 < pairs.size(); ++key) pairs[key + 1] = pairs[key] + static_cast<double>(seen_by[key]);
  double all = 0;
  for (size_t i = 0; i < static_cast<size_t>(shape_.batch); ++i) {
    const auto end = static_cast<size_t>(modifiers_.lengths ? tables_->lengths[i] : shape_.kv_len);
    const auto begin = static_cast<size_t>(modifiers_.starts ? tables_->starts[i] : 0);
    if (begin < end) all += pairs[end] - pairs[begin];
  }
  return all * static_cast<double>(shape_.q_heads);
}

double ModifiedAttention::changed(double s, int64_t batch, int64_t head, int64_t q, int64_t k) const {
  const Modifiers& m = modifiers_;
  if (m.soft_cap != 0) {
    s = m.soft_cap * std::tanh(s / m.soft_cap);
  }
  if (m.alibi) {
    const int64_t distance = q + shape_.kv_len - shape_.q_len - k;
    s -= static_cast<double>(tables_->slopes[static_cast<size_t>(head)]) * static_cast<double>(distance);
  }
  if (m.bias != "none") {
    const int64_t index[] = {batch, head, q};
    int64_t at = m.bias_has('k') ? k : 0;
    for (int axis = 0; axis < 3; ++axis) at += index[axis] * bias_strides_[axis];
    s += static_cast<double>(bias_at(at));
  }
  return s;
}

}  // namespace attn
