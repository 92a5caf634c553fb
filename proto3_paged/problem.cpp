#include "proto3_paged/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "common/base/divided_up.h"
#include "common/base/parallel.h"
#include "common/cases/compare_rows.h"
#include "common/cases/configurations.h"
#include "common/cases/input_pool.h"
#include "common/cases/modified_attention.h"
#include "common/cases/reference.h"
#include "common/cases/tolerance.h"
#include "common/paged/quantise.h"

namespace attn {
namespace {

constexpr uint64_t drawn_by = 1;      // the seed of lengths and page orders; the run's seed draws only tensors
constexpr int64_t most_decoded = 16;  // most queries of a sequence with task=decode
// The oracle computes as many rows of O as need about this number of products of elements of Q and K, but at least 4
// rows of each sequence.
constexpr double checked_products = 3e8;

int64_t tokens_of_page(const PagedConfig& config) {
  return config.decode.page_size > 0 ? config.decode.page_size : config.decode.shape.kv_len;
}

/// Returns about 2^32 * 2^(octaves / 2^16). `octaves` must lie between -16 * 2^16 and 16 * 2^16. Between powers of two
/// the result is linear. With integers the result is the same on all machines.
int64_t power_of_two(int64_t octaves) {
  const int64_t whole = octaves >> 16, rest = octaves & 0xffff;
  return whole >= 0 ? (0x10000 + rest) << (16 + whole) : (0x10000 + rest) << 16 >> -whole;
}

/// Draws a length from a nearly log-normal distribution with the median `median` and a standard deviation of 1.5
/// octaves (factors of two). A sum of twelve uniform numbers takes the place of the normal distribution.
int64_t chat_length(std::mt19937_64& random, int64_t median, int64_t longest) {
  int64_t sum = 0;  // its mean is 6 * 2^16 and its standard deviation 2^16
  for (int i = 0; i < 12; ++i) sum += static_cast<int64_t>(random() >> 48);
  return std::clamp<int64_t>(median * power_of_two(3 * (sum - 6 * 0x10000) / 2) >> 32, 1, longest);
}

/// Returns the strides of a cache, in elements.
Strides cache_strides(const PagedConfig& config) {
  const int64_t heads = config.decode.shape.kv_heads, dim = config.decode.shape.head_dim;
  const int64_t tokens = tokens_of_page(config);
  if (config.cache_layout == "hnd") return {heads * tokens * dim, tokens * dim, dim};
  return {heads * tokens * dim, dim, heads * dim};
}

/// Returns a cache with the rows of `tensor`. Slots without a token and slots of new tokens hold NaN, or 127 in int8.
Buffer scattered(Device& device, const PagedConfig& config, const PageTable& table, const Tensor& tensor) {
  const Strides strides = cache_strides(config);
  const auto element = static_cast<int64_t>(size_bytes(tensor.dtype));
  const std::vector<int64_t> lengths = config.sequence_lengths();
  std::vector<std::byte> cache(static_cast<size_t>(table.pool * strides.batch * element),
                               element == 1 ? std::byte{0x7f} : std::byte{0xff});
  // The tasks divide the heads, not the sequences: two sequences may share a page, and no two tasks may write one row.
  parallel_for(tensor.heads, 1, [&](int64_t first, int64_t end) {
    for (int64_t h = first; h < end; ++h) {
      for (int64_t b = 0; b < tensor.batch; ++b) {
        for (int64_t token = 0; token < config.cached_tokens(lengths[static_cast<size_t>(b)]); ++token) {
          const int64_t tokens = tokens_of_page(config);
          const int64_t page = table.pages[static_cast<size_t>(b * table.max_pages + token / tokens)];
          const int64_t to = page * strides.batch + h * strides.head + token % tokens * strides.row;
          std::memcpy(cache.data() + to * element, tensor.data.data() + tensor.offset(b, h, token, 0) * element,
                      static_cast<size_t>(tensor.dim * element));
        }
      }
    }
  });
  return uploaded(device, cache);
}

/// Returns the scales of page_scales() in the order [pool, heads]. Pages without a token have the scale 1.
Buffer scattered_scales(Device& device, const PagedConfig& config, const PageTable& table,
                        const std::vector<float>& scales) {
  const auto heads = static_cast<size_t>(config.decode.shape.kv_heads);
  std::vector<float> pool(static_cast<size_t>(table.pool) * heads, 1);
  for (size_t i = 0; i < table.pages.size(); ++i) {
    if (table.pages[i] < 0) continue;
    std::copy_n(&scales[i * heads], heads, &pool[static_cast<size_t>(table.pages[i]) * heads]);
  }
  return uploaded(device, pool);
}

/// Returns the first `rows` rows of one sequence of a tensor.
Tensor sequence_of(const Tensor& tensor, int64_t batch, int64_t rows) {
  Tensor one = Tensor::zeros(1, tensor.heads, rows, tensor.dim, tensor.dtype, Layout::bhsd);
  if (rows == 0) return one;
  const auto element = static_cast<int64_t>(size_bytes(tensor.dtype));
  for (int64_t h = 0; h < tensor.heads; ++h) {
    std::memcpy(one.data.data() + one.offset(0, h, 0, 0) * element,
                tensor.data.data() + tensor.offset(batch, h, 0, 0) * element,
                static_cast<size_t>(rows * tensor.dim * element));
  }
  return one;
}

RopeShape rope_shape(const PagedConfig& config) {
  const AttentionShape& shape = config.decode.shape;
  return {.batch = shape.batch,
          .q_heads = shape.q_heads,
          .kv_heads = shape.kv_heads,
          .rows = shape.q_len,
          .dtype = config.decode.dtype};
}

AttentionShape shape_of(const PagedConfig& config, int64_t length) {
  AttentionShape shape = config.decode.shape;
  shape.batch = 1;
  shape.kv_len = length;
  return shape;
}

/// Returns the modified attention of one sequence. The queries are the sequence's last tokens.
ModifiedAttention modified(const PagedConfig& config, int64_t length) {
  return {config.modifiers, {.variant = "tuned", .shape = shape_of(config, length), .dtype = config.decode.dtype}};
}

/// Returns how many tokens of a sequence at least one query of the sequence sees.
int64_t keys_seen(const PagedConfig& config, int64_t length) {
  const ModifiedAttention one = modified(config, length);
  return one.range(0, config.decode.shape.q_len - 1).second - one.range(0, 0).first;
}

// Returns the memory that a case needs. On the host each sequence is padded to the longest length. If the cache has
// scales, the host keeps K and V twice: as drawn, in f32, and as stored. While the host uploads the cache of K or of V,
// the host also keeps this cache. The last page of a sequence may have only one token, so a cache on pages counts one
// page more for each sequence.
Memory paged_memory(const PagedConfig& paged) {
  const AttentionShape& shape = paged.decode.shape;
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  const double batch = number(shape.batch), row = number(shape.kv_heads) * number(shape.head_dim);
  const double element = number(size_bytes(paged.decode.cache_dtype));
  const double drawn = has_scales(paged.decode.cache_dtype) ? sizeof(float) + element : element;
  double tokens = 0;
  for (const int64_t length : paged.sequence_lengths()) tokens += number(length);
  const double cache = paged.decode.page_size == 0 ? batch * number(shape.kv_len) * row * element
                                                   : (tokens + batch * number(paged.decode.page_size)) * row * element;
  const double queries = batch * number(shape.q_heads) * number(shape.q_len) * number(shape.head_dim) *
                         (number(size_bytes(paged.decode.dtype)) + number(size_bytes(paged.decode.out_dtype)));
  const double copy = paged.prefill ? batch * number(expanded_bytes(paged.decode)) : 0;
  return {.device = 2 * cache + queries + copy,
          .host = 2 * batch * number(shape.kv_len) * row * drawn + cache + queries};
}

}  // namespace

PagedConfig PagedConfig::from(const Case& config) {
  PagedConfig paged = {.decode = decode_config_of(config),
                       .cache_layout = config.text("cache_layout"),
                       .page_order = config.text("page_order"),
                       .lengths = config.text("lengths"),
                       .append = config.text("append"),
                       .shared_pct = config.integer("shared_pct"),
                       .cascade = config.integer("cascade") != 0,
                       .prefill = config.text("task") == "prefill"};
#define ATTN_MODIFIER(type, name, ...) paged.modifiers.name = static_cast<type>(config.integer(#name));
#define ATTN_OPTIONS_OF_CACHE
#include "common/attention/options.def"
  paged.modifiers.sinks = config.integer("sinks") != 0;
  if (paged.append == "none") return paged;
  const int64_t rotary_dim = config.integer("rotary_dim");
  paged.decode.appends = paged.append == "fused";
  paged.decode.rotary_dim = rotary_dim > 0 ? rotary_dim : paged.decode.shape.head_dim;
  if (config.text("rope_pairing") == "interleaved") paged.decode.pairing = RopePairing::interleaved;
  rope_frequencies(paged.rope());  // throws if the configuration is invalid
  return paged;
}

RopeConfig PagedConfig::rope() const {
  return {.head_dim = decode.shape.head_dim, .rotary_dim = decode.rotary_dim, .pairing = decode.pairing};
}

int64_t PagedConfig::cached_tokens(int64_t length) const {
  return append == "none" ? length : std::max<int64_t>(length - decode.shape.q_len, 0);
}

std::vector<int64_t> PagedConfig::sequence_lengths() const {
  const int64_t batch = decode.shape.batch, longest = decode.shape.kv_len;
  std::vector<int64_t> result(static_cast<size_t>(batch), longest);
  if (lengths == "equal") return result;
  std::mt19937_64 random(drawn_by);
  const bool chat = lengths == "chat";
  for (size_t b = 1; b < result.size(); ++b) {
    result[b] = chat ? chat_length(random, std::max<int64_t>(longest / 4, 1), longest)
                     : 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(longest));
  }
  if (batch > 1 && !chat) result[static_cast<size_t>(batch / 2)] = 0;
  return result;
}

bool PagedConfig::same_inputs(const PagedConfig& other) const {
  return decode.shape == other.decode.shape && decode.dtype == other.decode.dtype &&
         decode.cache_dtype == other.decode.cache_dtype && decode.out_dtype == other.decode.out_dtype &&
         lengths == other.lengths && shared_pct == other.shared_pct && (append == "none") == (other.append == "none") &&
         rope() == other.rope() &&
         (!has_scales(decode.cache_dtype) ||
          (tokens_of_page(*this) == tokens_of_page(other) && prefill == other.prefill));
}

int64_t shared_tokens(const PagedConfig& config) { return config.decode.shape.kv_len * config.shared_pct / 100; }

/// Returns the number of tokens on the pages that all sequences share, if the sequences are long enough.
int64_t shared_prefix(const PagedConfig& config) {
  const int64_t tokens = tokens_of_page(config);
  return config.page_order == "shared" ? shared_tokens(config) / tokens * tokens : 0;
}

PageTable page_table(const PagedConfig& config) {
  const int64_t batch = config.decode.shape.batch, tokens = tokens_of_page(config);
  const int64_t shared = shared_prefix(config) / tokens;
  const std::vector<int64_t> lengths = config.sequence_lengths();
  PageTable table;
  table.max_pages = (config.decode.shape.kv_len + tokens - 1) / tokens;
  table.pages.assign(static_cast<size_t>(batch * table.max_pages), -1);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = lengths[static_cast<size_t>(b)];
    for (int64_t i = 0; i * tokens < length; ++i) {
      const bool is_first =  // a page of the first sequence, which is the longest
          b > 0 && i < shared && (i + 1) * tokens <= config.cached_tokens(length);
      table.pages[static_cast<size_t>(b * table.max_pages + i)] = static_cast<int>(is_first ? i : table.pool++);
    }
    // In a contiguous cache an empty sequence has a page too.
    if (config.decode.page_size == 0) table.pages[static_cast<size_t>(b)] = static_cast<int>(b), table.pool = b + 1;
  }
  std::vector<int> order(static_cast<size_t>(table.pool));
  std::iota(order.begin(), order.end(), 0);
  if (config.page_order == "reversed") std::ranges::reverse(order);
  if (config.page_order == "random") std::ranges::shuffle(order, std::mt19937_64(drawn_by));
  for (int& page : table.pages) {
    if (page >= 0) page = order[static_cast<size_t>(page)];
  }
  return table;
}

PoolFigures pool_figures(const PagedConfig& config) {
  const PageTable table = page_table(config);
  const std::vector<int64_t> lengths = config.sequence_lengths();
  const int64_t tokens = tokens_of_page(config);
  std::vector<int64_t> filled(static_cast<size_t>(table.pool));
  int64_t neighbours = 0, gaps = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    const int* row = &table.pages[b * static_cast<size_t>(table.max_pages)];
    for (int64_t i = 0; i * tokens < lengths[b]; ++i) {
      int64_t& slots = filled[static_cast<size_t>(row[i])];
      slots = std::max(slots, std::min(tokens, lengths[b] - i * tokens));
      neighbours += i > 0;
      gaps += i > 0 && row[i] != row[i - 1] + 1;
    }
  }
  const auto share = [](int64_t part, int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  const int64_t slots = table.pool * tokens, held = std::accumulate(filled.begin(), filled.end(), int64_t{0});
  return {.waste = share(slots - held, slots), .fragmentation = share(gaps, neighbours)};
}

double repeated_bytes(const PagedConfig& config) {
  if (config.decode.page_size == 0) return 0;
  const std::vector<int64_t> lengths = config.sequence_lengths();
  const int64_t tokens = tokens_of_page(config), shared = shared_prefix(config) / tokens;
  int64_t repeated = 0;  // computed without the page table, which takes much memory for a large cache
  for (size_t b = 1; b < lengths.size(); ++b) {
    repeated += std::min(shared, config.cached_tokens(lengths[b]) / tokens) * tokens;
  }
  return static_cast<double>(repeated * 2 * config.decode.shape.kv_heads * config.decode.shape.head_dim) *
         static_cast<double>(size_bytes(config.decode.cache_dtype));
}

std::optional<AttentionHooks> paged_texts(const PagedConfig& config) {
  if (!config.modifiers.change_kernel()) return {};
  return without_mask(modifier_hooks(config.modifiers, config.decode.dtype));
}

std::optional<AttentionHooks> paged_hooks(const PagedConfig& config) {
  if (!config.modifiers.change_kernel()) return {};
  std::vector<ScoreFunction> references;
  for (const int64_t length : config.sequence_lengths())
    references.push_back(modified(config, length).hooks().reference);
  AttentionHooks hooks = without_mask(modified(config, config.decode.shape.kv_len).hooks());
  hooks.reference = [references](std::span<double> scores, int64_t batch, int64_t head, int64_t q) {
    references[static_cast<size_t>(batch)](scores, 0, head, q);
  };
  return hooks;
}

Plan paged_plan(const PagedConfig& paged, const DeviceInfo& device) {
  const std::vector<int64_t> lengths = paged.sequence_lengths();
  int64_t keys = 0;
  for (const int64_t length : lengths) keys += keys_seen(paged, length);
  const std::optional<AttentionHooks> hooks = paged_texts(paged);
  if (const int64_t q_len = paged.decode.shape.q_len; !paged.prefill && q_len > most_decoded) {
    return {.unable = fmt::format("q_len {}: at most {} with task decode", q_len, most_decoded)};
  }
  if (paged.cascade) {
    if (hooks || paged.prefill || paged.append != "none" || paged.lengths != "equal" || paged.page_order != "shared") {
      return {.unable =
                  "cascade 1 must have task decode, page_order shared, lengths equal, append none and no modifier"};
    }
    return cascade_plan(paged.decode, device, keys, shared_prefix(paged));
  }
  Plan plan;
  if (paged.prefill) {
    if (paged.decode.workers != 0 || !paged.decode.join_last) {
      return {.unable = "task prefill must have workers 0 and reduce last: each tile has one worker"};
    }
    double pairs = 0;
    for (const int64_t length : lengths) pairs += modified(paged, length).visible_pairs();
    plan = prefill_plan(paged.decode, device, pairs, keys, hooks ? &*hooks : nullptr);
  } else {
    plan = decode_plan(paged.decode, device, keys, hooks ? &*hooks : nullptr);
  }
  // The device's L1 and L2 caches may serve the tokens that sequences share, so bytes of shared tokens count once.
  if (paged.page_order == "shared" && !paged.modifiers.window()) plan.work.bytes -= repeated_bytes(paged);
  if (paged.append != "chain" || !plan.unable.empty()) return plan;
  const Plan append = append_plan(paged.decode, device);
  if (!append.unable.empty()) return append;
  const Plan rope = rope_plan(paged.rope(), rope_shape(paged), device);
  if (!rope.unable.empty()) return rope;
  plan.launches.insert(plan.launches.begin(), {rope.launches.front(), append.launches.front()});
  plan.work.bytes += rope.work.bytes + append.work.bytes;
  return plan;
}

CasePlan paged_case_plan(const Case& config, const Setting& setting) {
  const PagedConfig paged = PagedConfig::from(config);
  CasePlan plan{paged_plan(paged, setting.device), paged};
  plan.memory = paged_memory(paged);
  return plan;
}

PagedInputs::PagedInputs(Device& device, const PagedConfig& config_, uint64_t seed_)
    : config(config_), seed(seed_), lengths(config.sequence_lengths()) {
  const AttentionShape& shape = config.decode.shape;
  const auto random = [&](int64_t heads, int64_t rows, DType dtype, uint64_t stream) {
    return random_tensor(shape.batch, heads, rows, shape.head_dim, dtype, Layout::bhsd, seed, stream);
  };
  q = random(shape.q_heads, shape.q_len, config.decode.dtype, 0);
  const bool scaled = has_scales(config.decode.cache_dtype);
  k = random(shape.kv_heads, shape.kv_len, scaled ? DType::f32 : config.decode.cache_dtype, 1);
  v = random(shape.kv_heads, shape.kv_len, scaled ? DType::f32 : config.decode.cache_dtype, 2);
  for (Tensor* tensor : {&k, &v}) {
    const auto element = static_cast<int64_t>(size_bytes(tensor->dtype));
    for (int64_t b = 1; b < shape.batch; ++b) {
      for (int64_t h = 0; h < shape.kv_heads; ++h) {
        std::memcpy(tensor->data.data() + tensor->offset(b, h, 0, 0) * element,
                    tensor->data.data() + tensor->offset(0, h, 0, 0) * element,
                    static_cast<size_t>(shared_tokens(config) * shape.head_dim * element));
      }
    }
  }
  q_buffer = uploaded(device, q.data);
  if (config.append != "none") take_new_tokens(device);
  if (scaled) {
    const int64_t tokens = tokens_of_page(config);
    const auto stored = [&](Tensor& tensor, std::vector<float>& scales, Tensor& drawn) {
      scales = page_scales(tensor, config.decode.cache_dtype, tokens, lengths);
      drawn = std::exchange(tensor, quantised(tensor, config.decode.cache_dtype, tokens, scales));
    };
    stored(k, k_scales, drawn_k_);
    stored(v, v_scales, drawn_v_);
  }
  lengths_buffer = uploaded(device, std::vector<int>(lengths.begin(), lengths.end()));
}

void PagedInputs::take_new_tokens(Device& device) {
  const AttentionShape& shape = config.decode.shape;
  std::vector<int> first;
  for (const int64_t length : lengths) first.push_back(static_cast<int>(length - shape.q_len));
  const auto for_rows = [&](const auto& visit) {  // visit(offset in new_k, offset in k), in elements
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t h = 0; h < shape.kv_heads; ++h) {
        for (int64_t i = 0; i < shape.q_len; ++i) {
          const int64_t key = first[static_cast<size_t>(b)] + i;
          if (key >= 0) visit(new_k.offset(b, h, i, 0), k.offset(b, h, key, 0));
        }
      }
    }
  };
  // If the cache has scales, K and V are still in f32 here. New tokens then have Q's type.
  const DType dtype = has_scales(config.decode.cache_dtype) ? config.decode.dtype : k.dtype;
  new_k = Tensor::zeros(shape.batch, shape.kv_heads, shape.q_len, shape.head_dim, dtype, Layout::bhsd);
  new_v = new_k;
  std::vector<double> row(static_cast<size_t>(shape.head_dim));
  for_rows([&](int64_t at, int64_t key) {
    k.load(key, row);
    new_k.store(at, row);
    v.load(key, row);
    new_v.store(at, row);
    new_v.load(at, row);
    v.store(key, row);
  });
  new_k_buffer = uploaded(device, new_k.data);
  new_v_buffer = uploaded(device, new_v.data);
  offsets = uploaded(device, first);
  const RopeTable table = rope_table(config.rope(), shape.kv_len);
  cosines = uploaded(device, table.cosines);
  sines = uploaded(device, table.sines);
  q.store(0, reference_rope(config.rope(), q, first));
  turned_k = reference_rope(config.rope(), new_k, first);
  for_rows([&](int64_t at, int64_t key) {
    k.store(key, std::span(turned_k).subspan(static_cast<size_t>(at), static_cast<size_t>(shape.head_dim)));
  });
}

ReferenceRows PagedInputs::answer(size_t b, const Tensor& keys, const Tensor& values,
                                  const AttentionHooks* hooks) const {
  const AttentionShape shape = shape_of(config, lengths[b]);
  const auto batch = static_cast<int64_t>(b);
  ScoreFunction score;
  SinkFunction sink;
  if (hooks && hooks->reference) {
    score = [&](std::span<double> scores, int64_t, int64_t head, int64_t row) {
      hooks->reference(scores, batch, head, row);
    };
  }
  if (hooks && hooks->sink) sink = [&](int64_t, int64_t head) { return hooks->sink(batch, head); };
  const double products = static_cast<double>(std::max<int64_t>(shape.kv_len, 1) * shape.head_dim);
  const auto rows = static_cast<int64_t>(checked_products / static_cast<double>(lengths.size()) / products);
  const int64_t all = shape.q_heads * shape.q_len;
  return reference_attention(shape, sequence_of(q, batch, shape.q_len), keys, values,
                             rows >= all ? all_rows(shape) : sample_rows(shape, std::max<int64_t>(rows, 4), seed + b),
                             score, sink);
}

const std::vector<ReferenceRows>& PagedInputs::reference(const AttentionHooks* hooks) {
  std::vector<ReferenceRows>& rows = references_[hooks ? hooks->name : ""];
  for (size_t b = rows.size(); b < lengths.size(); ++b) {
    const auto cached = [&](const Tensor& tensor, const std::vector<float>& scales) {
      Tensor one = sequence_of(tensor, static_cast<int64_t>(b), lengths[b]);
      if (scales.empty()) return one;
      const size_t own = scales.size() / lengths.size();
      one = dequantised(one, tokens_of_page(config), std::span(scales).subspan(b * own, own));
      return config.prefill ? convert(one, config.decode.dtype, one.layout) : one;  // prefill reads a copy in Q's type
    };
    rows.push_back(answer(b, cached(k, k_scales), cached(v, v_scales), hooks));
  }
  return rows;
}

double PagedInputs::cache_error(const AttentionHooks* hooks) {
  double error = 0, size = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    const auto drawn = [&](const Tensor& tensor) { return sequence_of(tensor, static_cast<int64_t>(b), lengths[b]); };
    const std::vector<double> o = reference(hooks)[b].o, exact = answer(b, drawn(drawn_k_), drawn(drawn_v_), hooks).o;
    for (size_t i = 0; i < o.size(); ++i) {
      error += (o[i] - exact[i]) * (o[i] - exact[i]);
      size += exact[i] * exact[i];
    }
  }
  return std::sqrt(error / size);
}

std::shared_ptr<PagedCache> PagedInputs::cache(Device& device, const PagedConfig& config_) {
  const bool shared = config_.append == "none";
  const std::string layout =
      fmt::format("{} {} {}", config_.decode.page_size, config_.page_order, config_.cache_layout);
  if (shared) {
    // On a CPU two problems never share a key/value cache. A round of a comparison runs the baseline, the contender,
    // and the baseline again on its own PagedInputs (A'). If the baseline and the contender shared a key/value cache, a
    // round would read this cache twice, and the cache of A' once. Then the processor's caches, which a flush does not
    // empty fully, would serve A' less often.
    const auto found = caches_.find(layout);
    const bool may_share = !device.info().on_host;
    if (found != caches_.end() && (may_share || found->second.use_count() == 1)) return found->second;
  }
  auto made = std::make_shared<PagedCache>();
  made->pages = page_table(config_);
  made->k = scattered(device, config_, made->pages, k);
  made->v = scattered(device, config_, made->pages, v);
  made->table = uploaded(device, made->pages.pages);
  if (has_scales(config_.decode.cache_dtype)) {
    made->k_scales = scattered_scales(device, config_, made->pages, k_scales);
    made->v_scales = scattered_scales(device, config_, made->pages, v_scales);
  }
  if (shared) caches_[layout] = made;
  return made;
}

size_t PagedInputs::bytes() const {
  size_t sum = 0;
  for (const Tensor* tensor : {&q, &k, &v, &drawn_k_, &drawn_v_}) sum += tensor->bytes();
  for (const auto& [layout, cache] : caches_) sum += cache->bytes();
  return sum;
}

PagedProblem::PagedProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<PagedInputs> inputs,
                           const PagedConfig& config, const Plan& plan, std::optional<AttentionHooks> hooks)
    : device_(&device),
      inputs_(std::move(inputs)),
      config_(config),
      cache_(inputs_->cache(device, config_)),
      hooks_(std::move(hooks)) {
  const auto rows =
      static_cast<size_t>(config.decode.shape.batch * config.decode.shape.q_heads * config.decode.shape.q_len);
  o_ = Buffer(device, rows * static_cast<size_t>(config.decode.shape.head_dim) * size_bytes(config.decode.out_dtype));
  lse_ = Buffer(device, rows * sizeof(float));
  if (hooks_) hook_buffer_ = uploaded(device, hooks_->data);
  tensors_ = {.q = inputs_->q_buffer.data(),
              .o = o_.data(),
              .lse = static_cast<float*>(lse_.data()),
              .q_strides = inputs_->q.strides(),
              .o_strides = inputs_->q.strides(),
              .k = cache_->k.data(),
              .v = cache_->v.data(),
              .k_strides = cache_strides(config_),
              .v_strides = cache_strides(config_),
              .table = static_cast<const int*>(cache_->table.data()),
              .max_pages = cache_->pages.max_pages,
              .pages = cache_->pages.pool,
              .k_scales = static_cast<const float*>(cache_->k_scales.data()),
              .v_scales = static_cast<const float*>(cache_->v_scales.data()),
              .lengths = static_cast<const int*>(inputs_->lengths_buffer.data()),
              .hook_data = hooks_ ? hook_buffer_.data() : nullptr,
              .new_k = inputs_->new_k_buffer.data(),
              .new_v = inputs_->new_v_buffer.data(),
              .new_k_strides = inputs_->new_k.strides(),
              .new_v_strides = inputs_->new_v.strides(),
              .cosines = static_cast<const float*>(inputs_->cosines.data()),
              .sines = static_cast<const float*>(inputs_->sines.data())};
  if (config_.cascade) {
    const int64_t prefix = shared_prefix(config_);
    cascade_.emplace(device, pipelines, config_.decode, prefix, plan);
    std::vector<int> own;
    for (const int64_t length : inputs_->lengths) own.push_back(static_cast<int>(length - prefix));
    own_lengths_ = uploaded(device, own);
  } else if (config_.prefill) {
    prefill_.emplace(device, pipelines, config_.decode, plan, cache_->pages.pool);
    threadgroup_bytes_ = planned_launch(plan, "attention", device.info()).threadgroup_bytes;
  } else {
    launch_.emplace(device, pipelines, config_.decode, plan);
  }
  if (config_.append != "chain") return;
  rope_.emplace(device, pipelines, config_.rope(), rope_shape(config_), plan);
  append_.emplace(device, pipelines, config_.decode, plan);
  turned_q_ = Buffer(device, inputs_->q_buffer.bytes());
  turned_k_ = Buffer(device, inputs_->new_k_buffer.bytes());
  tensors_.q = turned_q_.data();
  tensors_.new_k = turned_k_.data();
}

void PagedProblem::encode(CommandEncoder& encoder) const {
  if (append_) {
    const Strides q = inputs_->q.strides(), k = inputs_->new_k.strides();
    rope_->encode(encoder, {.q = inputs_->q_buffer.data(),
                            .k = inputs_->new_k_buffer.data(),
                            .q_out = turned_q_.data(),
                            .k_out = turned_k_.data(),
                            .q_strides = q,
                            .k_strides = k,
                            .q_out_strides = q,
                            .k_out_strides = k,
                            .offsets = static_cast<const int*>(inputs_->offsets.data())});
    append_->encode(encoder, tensors_);
  }
  if (cascade_) return cascade_->encode(encoder, tensors_, static_cast<const int*>(own_lengths_.data()));
  if (prefill_) return prefill_->encode(encoder, tensors_);
  launch_->encode(encoder, tensors_);
}

void PagedProblem::for_new_rows(const std::function<void(int64_t, int64_t, int64_t, int64_t)>& visit) const {
  if (config_.append == "none") return;
  const AttentionShape& shape = config_.decode.shape;
  const Strides strides = cache_strides(config_);
  const int64_t tokens = tokens_of_page(config_),
                element = static_cast<int64_t>(size_bytes(config_.decode.cache_dtype));
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t i = 0; i < shape.q_len; ++i) {
      const int64_t key = inputs_->lengths[static_cast<size_t>(b)] - shape.q_len + i;
      if (key < 0) continue;
      const int64_t page = cache_->pages.pages[static_cast<size_t>(b * cache_->pages.max_pages + key / tokens)];
      for (int64_t h = 0; h < shape.kv_heads; ++h) {
        visit(b, h, i, (page * strides.batch + h * strides.head + key % tokens * strides.row) * element);
      }
    }
  }
}

/// Checks the new rows in the cache. Keys may differ from turned_k, which the host computes in double, by 4e-6 and in
/// addition by 2^-22 of the key in f32, or by the error of one rounding in 16 bits. A number of an 8-bit cache may err
/// by a little more than half a step.
void PagedProblem::check_new_rows(Check& check) const {
  const DType dtype = config_.decode.cache_dtype;
  const auto dim = static_cast<size_t>(config_.decode.shape.head_dim);
  const double rounding = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-22, floor = 4e-6;
  Tensor row = Tensor::zeros(1, 1, 1, config_.decode.shape.head_dim, dtype, Layout::bhsd);
  std::vector<double> got(dim), allowed(dim);
  const auto divide = [&](std::vector<double>& want, const std::vector<float>& scales, int64_t b, int64_t h,
                          int64_t i) {
    if (scales.empty()) return;
    const int64_t tokens = tokens_of_page(config_), pages = divided_up(config_.decode.shape.kv_len, tokens);
    const int64_t page = (inputs_->lengths[static_cast<size_t>(b)] - config_.decode.shape.q_len + i) / tokens;
    const double scale = scales[static_cast<size_t>((b * pages + page) * config_.decode.shape.kv_heads + h)];
    for (size_t d = 0; d < dim; ++d) {
      want[d] /= scale;
      allowed[d] = dtype == DType::int8 ? 0.501 : std::abs(want[d]) / 15.9 + 0x1p-10 + 1e-3;
    }
  };
  for_new_rows([&](int64_t b, int64_t h, int64_t i, int64_t offset) {
    const auto name = [&](const char* what) {
      return [=](size_t d) {
        return fmt::format("cached {} of new token {} of sequence {}, head {}, column {}", what, i, b, h, d);
      };
    };
    const int64_t at = inputs_->new_k.offset(b, h, i, 0);
    std::vector<double> want(inputs_->turned_k.begin() + at,
                             inputs_->turned_k.begin() + at + static_cast<int64_t>(dim));
    for (size_t d = 0; d < dim; ++d) allowed[d] = rounding * std::abs(want[d]) + floor;
    divide(want, inputs_->k_scales, b, h, i);
    device_->download(row.data.data(), static_cast<const char*>(cache_->k.data()) + offset, row.bytes());
    row.load(0, got);
    check.merge(compare(got, want, allowed, name("k")));
    inputs_->new_v.load(at, want);
    std::ranges::fill(allowed, 0);
    divide(want, inputs_->v_scales, b, h, i);
    device_->download(row.data.data(), static_cast<const char*>(cache_->v.data()) + offset, row.bytes());
    row.load(0, got);
    check.merge(compare(got, want, allowed, name("v")));
  });
}

Json PagedProblem::values() const {
  const PoolFigures pool = pool_figures(config_);
  Json values = {{"waste", pool.waste}, {"fragmentation", pool.fragmentation}};
  if (prefill_) {
    values["threadgroup_bytes"] = threadgroup_bytes_;
  } else {
    const DecodeLaunch& launch = cascade_ ? cascade_->own() : *launch_;
    values["workers"] = launch.workers();
    values["threadgroup_bytes"] = launch.threadgroup_bytes();
  }
  if (has_scales(config_.decode.cache_dtype)) values["cache_error"] = inputs_->cache_error(hooks_ ? &*hooks_ : nullptr);
  return values;
}

void PagedProblem::poison() {
  o_.poison();
  lse_.poison();
  const std::vector<std::byte> nan(
      static_cast<size_t>(config_.decode.shape.head_dim) * size_bytes(config_.decode.cache_dtype), std::byte{0xff});
  for_new_rows([&](int64_t, int64_t, int64_t, int64_t offset) {
    for (Buffer* cache : {&cache_->k, &cache_->v})
      device_->upload(static_cast<char*>(cache->data()) + offset, nan.data(), nan.size());
  });
}

std::vector<std::byte> PagedProblem::output() const { return downloaded({&o_, &lse_}); }
std::vector<std::byte> PagedProblem::cache() const { return downloaded({&cache_->k, &cache_->v}); }

Check PagedProblem::check() {
  const AttentionShape& shape = config_.decode.shape;
  Tensor o =
      Tensor::zeros(shape.batch, shape.q_heads, shape.q_len, shape.head_dim, config_.decode.out_dtype, Layout::bhsd);
  o_.download(o.data.data(), o.bytes());
  const std::vector<float> lse = downloaded<float>(lse_);
  const std::vector<ReferenceRows>& reference = inputs_->reference(hooks_ ? &*hooks_ : nullptr);
  const DType multiplied =  // kernels convert elements of 8 bits to this type or to a finer one
      has_scales(config_.decode.cache_dtype) ? config_.decode.dtype : config_.decode.cache_dtype;
  const bool hooked = hooks_ && hooks_->change != ScoreChange::none;
  // The kernel may round a turned query or key to a neighbour of the oracle's rounded number. With an 8-bit cache the
  // check allows the rounding error of bf16.
  const DType rounded = has_scales(config_.decode.cache_dtype) ? DType::bf16 : multiplied;
  const double rotation_error = config_.append == "none" || rounded == DType::f32 ? 0
                                : rounded == DType::f16                           ? 0x1p-11
                                                                                  : 0x1p-8;
  Check check;
  for (size_t b = 0; b < reference.size(); ++b) {
    const ReferenceRows& want = reference[b];
    const AttentionTolerance allowed =
        attention_tolerance(shape_of(config_, inputs_->lengths[b]), multiplied, config_.decode.out_dtype, hooked, want,
                            (hooks_ ? hooks_->score_error : 0) + rotation_error);
    const Check one = compare_attention(
        o, lse, want, allowed,
        [&](const RowIndex& row) { return fmt::format("sequence {}, head {}, query {}", b, row.head, row.q); },
        static_cast<int64_t>(b));
    const int64_t rows = check.rows_checked + one.rows_checked;
    check.merge(one);
    check.rows_checked = rows;
  }
  check_new_rows(check);
  if (!(cascade_ ? cascade_->at_rest() : prefill_ ? prefill_->at_rest() : launch_->at_rest()))
    check.fail("after the launch a counter of a tile's parts is not 0, or a guard band was overwritten");
  check_guards(check, {&inputs_->q_buffer, &inputs_->lengths_buffer, &cache_->k, &cache_->v, &cache_->k_scales,
                       &cache_->v_scales, &cache_->table, &o_, &lse_});
  return check;
}

std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> paged_problems() {
  constexpr size_t most_bytes = size_t{4} << 30;
  return [pool = InputPool<PagedInputs>(most_bytes)](Experiment& lab, const Case&, const CasePlan& plan) mutable {
    const auto& paged = plan.config<PagedConfig>();
    const auto inputs = pool.get([&](const PagedInputs& made) { return paged.same_inputs(made.config); },
                                 [&] { return std::make_shared<PagedInputs>(lab.device(), paged, lab.seed()); });
    return std::make_unique<PagedProblem>(lab.device(), lab.pipelines(), inputs, paged, plan, paged_hooks(paged));
  };
}

}  // namespace attn
