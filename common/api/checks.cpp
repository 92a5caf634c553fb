#include "common/api/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/api/limits.h"
#include "common/api/shapes.h"
#include "common/attention/rope.h"
#include "common/base/error.h"
#include "common/paged/cache.h"
#include "common/paged/decode.h"

namespace attn {
namespace {

template <typename... Values>
[[noreturn]] void refuse(fmt::format_string<Values...> text, Values&&... values) {
  throw BadInput(fmt::format(text, std::forward<Values>(values)...));
}

template <typename... Values>
void require(bool holds, fmt::format_string<Values...> text, Values&&... values) {
  if (!holds) refuse(text, std::forward<Values>(values)...);
}

constexpr int64_t most_in_tree = 64;  // `tree` has a 64-bit word for each new token, with a bit for each new token
constexpr int64_t most_tokens = int64_t{1} << 30, most_width = 8192;
constexpr int64_t most_count = 65535;  // the limit of a GPU's grid in two of its dimensions
constexpr int64_t most_int = std::numeric_limits<int>::max();
constexpr int64_t most_bytes = int64_t{1} << 56;  // more bytes than any memory has

// ---- overlaps in memory

/// The memory of a tensor, a dense table or a mask: addresses from `begin` to before `end`. `begin` equals `end` if the
/// tensor is empty.
struct Place {
  const char* name;
  int64_t begin, end;
  const TensorView* tensor;  // null: this place belongs to a table or a mask
};

Place place_of(const char* name, const void* table, int64_t bytes) {
  if (!table || table == no_address || bytes == 0) return {};
  const auto begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(table));
  return {.name = name, .begin = begin, .end = begin + bytes, .tensor = nullptr};
}

/// The memory from the first byte of a mask to its last.
Place place_of(const char* name, const MaskView& mask) {
  if (!mask.data || elements({mask.sizes[0], mask.sizes[1], mask.sizes[2], mask.sizes[3]}) == 0) return {};
  const auto at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(mask.data));
  Place place{.name = name, .begin = at, .end = at + 1, .tensor = nullptr};
  for (int axis = 0; axis < 4; ++axis) {
    int64_t bytes = 0;
    require(!__builtin_mul_overflow(mask.strides[axis], mask.sizes[axis] - 1, &bytes) && std::abs(bytes) < most_bytes,
            "{}: a stride of {} bytes is not allowed; no memory is so large", name, mask.strides[axis]);
    (bytes < 0 ? place.begin : place.end) += bytes;
  }
  return mask.data == no_address ? Place{} : place;
}

Place place_of(const char* name, const TensorView& t) {
  if (t.empty()) return {};
  const auto size = static_cast<int64_t>(size_bytes(t.dtype));
  const auto at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(t.data));
  Place place{.name = name, .begin = at, .end = at + t.width * size, .tensor = &t};
  const auto reach = [&](int64_t count, int64_t stride) {
    int64_t bytes = 0;
    const bool fits =
        count == 1 || (!__builtin_mul_overflow(stride, size * (count - 1), &bytes) && std::abs(bytes) < most_bytes);
    require(fits, "{}: a stride of {} elements is not allowed; no memory is so large", name, stride);
    (bytes < 0 ? place.begin : place.end) += bytes;
  };
  reach(t.batch, t.strides.batch);
  reach(t.heads, t.strides.head);
  reach(t.tokens, t.strides.row);
  return place;
}

/// The places of all tensors and tables that a call reads, or of all tensors and tables that the call writes.
class Places {
 public:
  void add(const Place& place) { places_.at(count_++) = place; }
  const Place* begin() const { return places_.data(); }
  const Place* end() const { return places_.data() + count_; }

 private:
  std::array<Place, 16> places_;  // only the first count_ are set
  size_t count_ = 0;
};

/// The rows of a tensor: the count and the stride along each axis. Strides are in bytes and not negative. An axis of
/// one row has stride 0.
struct Rows {
  struct Axis {
    int64_t count, stride;
  };
  int64_t bytes;  // of a row
  std::array<Axis, 3> axes{};
};

Rows rows_of(const Place& place) {
  if (!place.tensor) return {.bytes = place.end - place.begin};
  const TensorView& t = *place.tensor;
  const auto size = static_cast<int64_t>(size_bytes(t.dtype));
  const auto axis = [&](int64_t count, int64_t stride) {
    return Rows::Axis{count, count == 1 ? 0 : std::abs(stride) * size};
  };
  return {t.width * size,
          {axis(t.batch, t.strides.batch), axis(t.heads, t.strides.head), axis(t.tokens, t.strides.row)}};
}

bool same(const TensorView& a, const TensorView& b) {
  const auto equal = [](int64_t stride, int64_t other, int64_t count) { return count == 1 || stride == other; };
  return a.data == b.data && equal(a.strides.batch, b.strides.batch, a.batch) &&
         equal(a.strides.head, b.strides.head, a.heads) && equal(a.strides.row, b.strides.row, a.tokens);
}

/// A choice of how many steps of `stride` bytes to take: from `least` to `most` steps.
struct Steps {
  int64_t stride, least = 0, most = 0;
};

/// For each entry of `steps` the function chooses how many steps to take. Returns whether some choices lead from byte
/// `at` to a byte in [least, most]. `looks` is the number of choices that the function may still try. meet() allows 256
/// choices. These are enough if each stride is at least as long as all steps of the smaller strides together. If the
/// function has used up its choices and found no such byte, it returns false, although an untried choice might lead to
/// such a byte.
bool leads_into(std::span<const Steps> steps, int64_t at, int64_t least, int64_t most, int& looks) {
  if (steps.empty()) return least <= at && at <= most;
  const auto [stride, fewest, largest] = steps.front();
  int64_t down = 0, up = 0;  // the least and the most bytes of the other steps together
  for (const Steps& other : steps.subspan(1)) {
    down += other.stride * other.least;
    up += other.stride * other.most;
  }
  const auto floor = [](int64_t a, int64_t b) { return a / b - (a % b < 0); };
  const int64_t first = std::max(fewest, -floor(at + up - least, stride));
  const int64_t last = std::min(largest, floor(most - down - at, stride));
  for (int64_t count = first; count <= last && looks > 0; ++count) {
    --looks;
    if (leads_into(steps.subspan(1), at + count * stride, least, most, looks)) return true;
  }
  return false;
}

/// Whether a byte belongs to both places; false also if 256 choices do not find such a byte (see leads_into()). The
/// rows of one tensor may lie between the rows of another tensor, as the rows of slices do.
bool meet(const Place& a, const Place& b) {
  if (a.end <= b.begin || b.end <= a.begin) return false;
  for (const Place* const place : {&a, &b}) {
    if (place->tensor && place->tensor->data == no_address) return false;
  }
  const Rows of_a = rows_of(a), of_b = rows_of(b);
  std::vector<Steps> steps;
  const auto add = [&](const Rows::Axis& axis, int64_t least, int64_t most) {
    if (axis.stride == 0) return;
    const auto known = std::ranges::find(steps, axis.stride, &Steps::stride);
    Steps& all = known == steps.end() ? steps.emplace_back(Steps{.stride = axis.stride}) : *known;
    all.least += least;
    all.most += most;
  };
  for (const Rows::Axis& axis : of_a.axes) add(axis, 0, axis.count - 1);
  for (const Rows::Axis& axis : of_b.axes) add(axis, 1 - axis.count, 0);
  std::ranges::sort(steps, std::greater(), &Steps::stride);
  int looks = 256;
  return leads_into(steps, a.begin - b.begin, 1 - of_a.bytes, of_b.bytes - 1, looks);
}

/// Whether some rows of the place may overlap.
bool folds(const Place& place) {
  if (!place.tensor) return false;
  Rows rows = rows_of(place);
  std::ranges::sort(rows.axes, {}, &Rows::Axis::stride);
  int64_t bytes = rows.bytes;
  for (const auto& [count, stride] : rows.axes) {
    if (count == 1) continue;
    if (stride < bytes) return true;
    bytes += (count - 1) * stride;
  }
  return false;
}

void check_apart(const Place& written, const Place& other) {
  require(!meet(written, other), "{} overlaps {}; an output must have memory of its own", written.name, other.name);
}

void check_written(const Places& written, const Places& read) {
  for (const Place& to : written) {
    require(!folds(to), "{}: rows that overlap one another are not allowed in an output", to.name);
    for (const Place& other : read) check_apart(to, other);
    for (const Place* other = &to + 1; other != written.end(); ++other) check_apart(to, *other);
  }
}

// ---- tensors and numbers

void check_tensor(const char* name, const TensorView& t, bool gpu, int64_t most_batch = most_count) {
  require(t.batch >= 0 && t.heads >= 0 && t.tokens >= 0 && t.width > 0 && t.batch <= most_batch &&
              t.heads <= most_count && t.tokens <= most_tokens && t.width <= most_width,
          "{}: sizes [{}, {}, {}, {}] are not allowed; allowed are sizes up to [{}, {}, {}, {}] (batch, heads, tokens, "
          "width), and the width must be at least 1",
          name, t.batch, t.heads, t.tokens, t.width, most_batch, most_count, most_tokens, most_width);
  if (t.empty()) return;
  require(t.data != nullptr, "{} has no data", name);
  if (!gpu) return;
  const auto size = static_cast<int64_t>(size_bytes(t.dtype));
  const auto fits = [&](int64_t stride, int64_t count) { return count == 1 || stride % (alignment_bytes / size) == 0; };
  require(reinterpret_cast<uintptr_t>(t.data) % alignment_bytes == 0 && fits(t.strides.batch, t.batch) &&
              fits(t.strides.head, t.heads) && fits(t.strides.row, t.tokens),
          "{}: address and strides have to be multiples of {} bytes on a GPU", name, alignment_bytes);
}

void check_float(const char* name, DType dtype) {
  if (size_bytes(dtype) <= 1) refuse("{}: {} is not allowed; f32, f16 and bf16 are", name, attn::name(dtype));
}

/// Checks that kernels can use the scale. All kernels hold the scale in f32 and treat denormals as 0; some kernels
/// multiply the scale by log2(e).
void check_scale(double scale) {
  const double size = std::abs(scale);
  require(scale == 0 || (size >= least_scale && size <= most_scale),
          "scale {} is not allowed; its magnitude must be 0, or from 2^-126 to 2^127", scale);
}

/// Throws BadInput unless each value is from `least` to `most`.
void check_values(const char* name, const int* values, int64_t count, int64_t least, int64_t most) {
  for (int64_t i = 0; i < count; ++i) {
    require(values[i] >= least && values[i] <= most, "{}[{}] is {}; {} to {} are allowed", name, i, values[i], least,
            most);
  }
}

int64_t count_rows(const TensorView& t) {
  const int64_t rows = t.batch * t.heads * t.tokens;
  require(rows <= most_int, "{} rows are not allowed; fewer than 2^31 are", rows);
  return rows;
}

/// Makes the checks that all attention calls share. Returns whether there are rows to compute.
bool check_attention(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& o, double scale,
                     bool gpu, int64_t most_batch = most_count) {
  check_tensor("q", q, gpu);
  check_tensor("k", k, gpu, most_batch);
  check_tensor("v", v, gpu, most_batch);
  check_tensor("o", o, gpu);
  check_float("q", q.dtype);
  check_float("o", o.dtype);
  if (v.dtype != k.dtype)
    refuse("v: {} is not allowed; v must have the type of k, {}", attn::name(v.dtype), attn::name(k.dtype));
  if (o.dtype != q.dtype && o.dtype != DType::f32)
    refuse("o: {} is not allowed; allowed are the type of q, {}, and f32", attn::name(o.dtype), attn::name(q.dtype));
  require(k.heads > 0 ? q.heads % k.heads == 0 : q.heads == 0, "k has {} heads, which do not divide the {} heads of q",
          k.heads, q.heads);
  require(k.width == q.width && v.width == q.width && o.width == q.width,
          "widths {} of q, {} of k, {} of v, {} of o are not allowed; they must be equal", q.width, k.width, v.width,
          o.width);
  const int64_t widest = gpu ? 256 : most_width;
  require(q.width % 8 == 0 && q.width <= widest, "width {} is not allowed; it must be a multiple of 8, at most {}",
          q.width, widest);
  require(v.heads == k.heads && v.tokens == k.tokens && v.batch == k.batch,
          "v is [{}, {}, {}], k [{}, {}, {}] (batch, heads, tokens); they must be equal", v.batch, v.heads, v.tokens,
          k.batch, k.heads, k.tokens);
  require(o.batch == q.batch && o.heads == q.heads && o.tokens == q.tokens,
          "o is [{}, {}, {}], q [{}, {}, {}] (batch, heads, tokens); they must be equal", o.batch, o.heads, o.tokens,
          q.batch, q.heads, q.tokens);
  check_scale(scale);
  return count_rows(q) > 0;
}

// ---- attention

/// Throws BadInput unless the value is from `least` to `most`, or `off`. A `most` that is the largest value of the type
/// is no limit.
template <typename T>
void check_number(const char* name, T value, T off, T least, T most) {
  if (value == off || (value >= least && value <= most)) return;
  const bool open = most == std::numeric_limits<T>::max();
  refuse("{} {}: {}{}", name, value,
         open ? fmt::format("numbers from {} are allowed", least) : fmt::format("{} to {} are allowed", least, most),
         off < least ? fmt::format(", and {} turns the option off", off) : "");
}

void check_modifiers(const FlashCall& call) {
#define ATTN_MODIFIER(type, name, off, least, most, ...) check_number<type>(#name, call.name, off, least, most);
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  require(call.soft_cap == 0 || std::abs(call.scale) <= most_scale * call.soft_cap,
          "scale {} is not allowed; with a soft_cap of {} its magnitude must be at most {}", call.scale, call.soft_cap,
          most_scale * call.soft_cap);
  require(call.prefix == 0 || call.causal,
          "prefix {} is allowed only with causal, because it adds keys that causal hides", call.prefix);
  require(!call.cu_seqlens_q == !call.cu_seqlens_k,
          "cu_seqlens_q and cu_seqlens_k must both be given or both be missing");
  if (call.cu_seqlens_q) {
    require(call.q.batch <= 1,
            "cu_seqlens_q: a batch of {} is not allowed; sequences lie one after the other in a batch of 1",
            call.q.batch);
    require(call.sequences >= 1 && call.sequences <= most_tokens,
            "cu_seqlens_q: {} elements are not allowed; 2 to 2^30 + 1 are (the number of sequences plus 1)",
            call.sequences + 1);
    const std::pair<bool, const char*> options[] = {{call.global_tokens != 0, "global_tokens"},
                                                    {call.alibi, "alibi"},
                                                    {call.lengths, "lengths"},
                                                    {call.documents, "documents"},
                                                    {call.blocks, "blocks"},
                                                    {call.bias, "bias"},
                                                    {call.starts, "starts"},
                                                    {call.mask.data, "a mask"}};
    for (const auto& [given, name] : options) require(!given, "cu_seqlens_q is not allowed with {}", name);
  }
  require(call.alibi || !call.alibi_slopes, "alibi_slopes are allowed only with alibi");
  const auto check_shape = [&](const char* name, const int64_t(&sizes)[4], const char* axes, int64_t keys) {
    const Shape allowed = {axes, {one_or(call.q.batch), one_or(call.q.heads), one_or(call.q.tokens), one_or(keys)}};
    if (!has_shape(sizes, 4, allowed)) throw BadInput(refused_shape(name, sizes, 4, {allowed}));
  };
  if (call.bias) check_shape("bias", call.bias_sizes, bias_axes, padded_keys(call.k.tokens));
  if (call.mask.data) check_shape("mask", call.mask.sizes, mask_axes, call.k.tokens);
}

/// Checks the documents of the queries' own keys, which are the last `queries` keys: both numbers are from 0 to `keys`,
/// and neither decreases from a key to the next. The numbers must not decrease, because a kernel takes a tile's keys
/// from the documents of its first and last query. Documents of earlier keys are not checked, because kernels do not
/// read these documents.
void check_documents(const int* documents, int64_t queries, int64_t keys) {
  int begin = 0, end = 0;
  for (int64_t key = std::max<int64_t>(keys - queries, 0); key < keys; ++key) {
    const int next_begin = documents[2 * key], next_end = documents[2 * key + 1];
    require(next_begin >= begin && next_end >= end && next_begin <= keys && next_end <= keys,
            "documents[{}] is [{}, {}); numbers must be from 0 to {}, and not less than the numbers of the key before",
            key, next_begin, next_end, keys);
    begin = next_begin;
    end = next_end;
  }
}

/// Checks the numbers of cu_seqlens_q or cu_seqlens_k, for a tensor of `tokens` tokens.
void check_sequences(const char* name, const int* starts, int64_t sequences, int64_t tokens) {
  require(starts[0] == 0, "{}[0] is {}; it must be 0", name, starts[0]);
  for (int64_t i = 1; i <= sequences; ++i) {
    require(starts[i] >= starts[i - 1] && starts[i] <= tokens, "{}[{}] is {}; {} to {} are allowed", name, i, starts[i],
            starts[i - 1], tokens);
  }
}

}  // namespace

bool check(const FlashCall& call, bool gpu, bool asked) {
  const bool rows = check_attention(call.q, call.k, call.v, call.o, call.scale, gpu);
  require(call.k.batch == call.q.batch, "k has a batch of {}, q of {}; they must be equal", call.k.batch, call.q.batch);
  if (call.k.dtype != call.q.dtype)
    refuse("k: {} is not allowed; k must have the type of q, {}", attn::name(call.k.dtype), attn::name(call.q.dtype));
  check_modifiers(call);
  Places written, read;
  written.add(place_of("o", call.o));
  if (call.lse) written.add(place_of("lse", call.lse, 4 * count_rows(call.q)));
  read.add(place_of("q", call.q));
  read.add(place_of("k", call.k));
  read.add(place_of("v", call.v));
  const int64_t batch = call.q.batch, q_heads = call.q.heads, kv_len = call.k.tokens, sequences = call.sequences;
  const int64_t(&bias_sizes)[4] = call.bias_sizes;
#define ATTN_TABLE(element, name, ...) \
  if (call.name) read.add(place_of(#name, call.name, 4 * elements({__VA_ARGS__})));
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  read.add(place_of("mask", call.mask));
  check_written(written, read);
  if (gpu || asked) return rows;
  if (call.lengths) check_values("lengths", call.lengths, batch, 0, kv_len);
  if (call.starts) check_values("starts", call.starts, batch, 0, kv_len);
  if (call.cu_seqlens_q) {
    check_sequences("cu_seqlens_q", call.cu_seqlens_q, sequences, call.q.tokens);
    check_sequences("cu_seqlens_k", call.cu_seqlens_k, sequences, kv_len);
  }
  if (call.documents) check_documents(call.documents, call.q.tokens, kv_len);
  return rows;
}

void simplify(FlashCall& call) {
  const int64_t queries = call.q.tokens, keys = call.k.tokens;
  if (call.prefix >= keys) call.causal = false;
  if (call.prefix >= keys || (call.prefix <= keys - queries + 1 && !call.cu_seqlens_q)) call.prefix = 0;
  if (call.window_left >= keys - 1 || call.global_tokens >= keys) call.window_left = -1;
  if (call.window_right >= queries - 1 || call.global_tokens >= keys || (call.causal && call.prefix == 0)) {
    call.window_right = -1;
  }
  if (call.window_left < 0 && call.window_right < 0) call.global_tokens = 0;
}

// ---- caches

int64_t capacity_of(const CacheCall& call) { return call.table ? call.max_pages * call.k.tokens : call.k.tokens; }

ModifiedCall modified_part(const CacheCall& call) {
  ModifiedCall part;
  part.q = call.q;
  part.k = call.k;
  part.k.tokens = capacity_of(call);
  part.causal = true;
  part.scale = call.scale;
#define ATTN_MODIFIER(type, name, ...) part.name = call.name;
#define ATTN_MODIFIER_TABLE(element, name, ...) part.name = call.name;
#define ATTN_OPTIONS_OF_CACHE
#include "common/attention/options.def"
  return part;
}

void check_cache(const CacheCall& call, bool gpu) {
  check_tensor("k", call.k, gpu, call.table ? most_int : most_count);
  require(call.lengths || call.q.batch == 0, "lengths are missing: [batch], int32");
  require(call.table || call.k.batch == call.q.batch,
          "k has a batch of {}, q of {}; without a table they must be equal", call.k.batch, call.q.batch);
  constexpr const char* allowed = "fewer than 2^30 tokens are allowed";
  require(!call.table || (call.max_pages <= most_tokens && capacity_of(call) < most_tokens),
          "a sequence may have {} pages of {} tokens each, which is too long; {}", call.max_pages, call.k.tokens,
          allowed);
  require(capacity_of(call) < most_tokens, "a capacity of {} tokens a sequence is too long; {}", capacity_of(call),
          allowed);
}

void check_cache_values(const CacheCall& call) {
  const auto sequences = static_cast<size_t>(call.q.batch);
  if (!call.table) return check_values("lengths", call.lengths, call.q.batch, 0, capacity_of(call));
  validate_page_table({call.table, sequences * static_cast<size_t>(call.max_pages)}, {call.lengths, sequences},
                      call.k.tokens, call.k.batch);
}

void check_new_scales(const CacheCall& call) {
  constexpr float least = 0x1p-126f;
  const auto check_page = [&](int64_t page) {
    for (const auto& [name, scales] : {std::pair{"k_scales", call.k_scales}, {"v_scales", call.v_scales}}) {
      for (int64_t head = 0; head < call.k.heads; ++head) {
        const float scale = scales[page * call.k.heads + head];
        require(scale >= least && std::isfinite(scale),
                "{}[{}, {}] is {}; finite numbers from 2^-126 are allowed for a {} that gets tokens", name, page, head,
                scale, call.table ? "page" : "sequence");
      }
    }
  };
  for (int64_t row = 0; row < call.q.batch; ++row) {
    const int64_t length = call.lengths[row];
    if (length == 0 || call.new_k.tokens == 0) continue;
    if (!call.table) {
      check_page(row);
      continue;
    }
    const int64_t first = std::max<int64_t>(length - call.new_k.tokens, 0) / call.k.tokens;
    for (int64_t i = first; i * call.k.tokens < length; ++i) check_page(call.table[row * call.max_pages + i]);
  }
}

void check_appended_pages(const CacheCall& call) {
  const int64_t page_size = call.k.tokens, tokens = call.new_k.tokens;
  if (!call.table || tokens == 0) return;
  struct Slots {  // of a page, as an entry of the table names it
    int32_t page;
    int64_t entry, begin, end;
    bool operator<(const Slots& other) const { return page < other.page; }
  };
  // Calls use() with the slots of the sequence's keys [begin, end).
  const auto each_page = [&](int64_t row, int64_t begin, int64_t end, const auto& use) {
    for (int64_t i = begin / page_size; begin < end && i * page_size < end; ++i) {
      const int64_t entry = row * call.max_pages + i;
      use(Slots{call.table[entry], entry, std::max<int64_t>(begin - i * page_size, 0),
                std::min(end - i * page_size, page_size)});
    }
  };
  std::vector<Slots> written;
  for (int64_t row = 0; row < call.q.batch; ++row) {
    const int64_t length = call.lengths[row];
    each_page(row, std::max<int64_t>(length - tokens, 0), length, [&](const Slots& at) { written.push_back(at); });
  }
  std::sort(written.begin(), written.end());
  const auto twice = std::adjacent_find(written.begin(), written.end(),
                                        [](const Slots& a, const Slots& b) { return a.page == b.page; });
  require(twice == written.end(),
          "table: tokens are appended to page {} twice; each entry that gets tokens must name a page of its own",
          twice == written.end() ? 0 : twice->page);
  for (int64_t row = 0; row < call.q.batch; ++row) {
    const int64_t length = call.lengths[row], first_query = std::max<int64_t>(length - tokens, 0);
    const bool windowed = call.window_left >= 0 && call.window_left < first_query;
    const int64_t first_seen =
        std::max<int64_t>(windowed ? first_query - call.window_left : 0, call.starts ? call.starts[row] : 0);
    each_page(row, first_seen, length, [&](const Slots& read) {
      const auto at = std::lower_bound(written.begin(), written.end(), read);
      if (at == written.end() || at->page != read.page || at->entry == read.entry) return;
      require(read.end <= at->begin || at->end <= read.begin,
              "table: sequence {} reads token {} of page {}, to which sequence {} appends this token; sequences may "
              "share only tokens that are in the cache before the call",
              row, std::max(read.begin, at->begin), read.page, at->entry / call.max_pages);
    });
  }
}

bool check(const CacheCall& call, bool gpu, bool asked) {
  const bool rows =
      check_attention(call.q, call.k, call.v, call.o, call.scale, gpu, call.table ? most_int : most_count);
  check_cache(call, gpu);
  require(capacity_of(call) > 0 || !rows, "the cache has no room for a token");
  const bool appends = call.new_k.there();
  require(
      (call.k_scales != nullptr) == has_scales(call.k.dtype) && (call.v_scales != nullptr) == has_scales(call.k.dtype),
      "k_scales and v_scales must be given for a cache of e4m3 or int8, and must be missing for any other cache");
  check_modifiers(modified_part(call));
  if (call.tree) {
    require(call.q.tokens <= most_in_tree, "tree: {} new tokens are not allowed; up to {} are", call.q.tokens,
            most_in_tree);
    require(!call.cosines,
            "tree is not allowed with cosines and sines: a token would have to be rotated by its depth in the tree, "
            "which the call does not know");
  }
  require(appends == call.new_v.there(), "new_k and new_v must both be given or both be missing");
  require(appends || (call.rotary_dim == 0 && !call.cosines && !call.sines),
          "rotary_dim, cosines and sines are allowed only with new_k and new_v");
  require((call.cosines != nullptr) == (call.sines != nullptr) && (call.rotary_dim == 0 || call.cosines),
          "cosines and sines must both be given or both be missing; with a rotary_dim both must be given");
  require(!call.cosines || call.positions >= capacity_of(call),
          "cosines and sines have {} positions; at least {} are wanted, one for each token that a sequence may have",
          call.positions, capacity_of(call));
  for (const auto& [name, tensor] : {std::pair{"new_k", &call.new_k}, {"new_v", &call.new_v}}) {
    if (!appends) break;
    check_tensor(name, *tensor, gpu);
    if (const DType wanted = has_scales(call.k.dtype) ? call.q.dtype : call.k.dtype; tensor->dtype != wanted) {
      refuse("{}: {} is not allowed; it must have the type of {}, {}", name, attn::name(tensor->dtype),
             has_scales(call.k.dtype) ? "q" : "the cache", attn::name(wanted));
    }
    require(tensor->batch == call.q.batch && tensor->heads == call.k.heads && tensor->tokens == call.q.tokens &&
                tensor->width == call.k.width,
            "{} is [{}, {}, {}, {}]; [{}, {}, {}, {}] (batch, kv_heads, q_len, width) is allowed", name, tensor->batch,
            tensor->heads, tensor->tokens, tensor->width, call.q.batch, call.k.heads, call.q.tokens, call.k.width);
    require(rows || tensor->empty(), "{} has rows, but q has no heads", name);
  }
  Places written, read;
  written.add(place_of("o", call.o));
  if (call.lse) written.add(place_of("lse", call.lse, 4 * count_rows(call.q)));
  (appends ? written : read).add(place_of("k", call.k));
  (appends ? written : read).add(place_of("v", call.v));
  read.add(place_of("q", call.q));
  read.add(place_of("lengths", call.lengths, 4 * call.q.batch));
  read.add(place_of("table", call.table, 4 * call.q.batch * call.max_pages));
  if (call.k_scales) {
    read.add(place_of("k_scales", call.k_scales, 4 * call.k.batch * call.k.heads));
    read.add(place_of("v_scales", call.v_scales, 4 * call.k.batch * call.k.heads));
  }
  const int64_t batch = call.q.batch, q_heads = call.q.heads, q_len = call.q.tokens;
#define ATTN_MODIFIER_TABLE(element, name, ...) \
  if (call.name) read.add(place_of(#name, call.name, static_cast<int64_t>(sizeof(element)) * elements({__VA_ARGS__})));
#define ATTN_OPTIONS_OF_CACHE
#include "common/attention/options.def"
  if (appends) {
    read.add(place_of("new_k", call.new_k));
    read.add(place_of("new_v", call.new_v));
    read.add(place_of("cosines", call.cosines, 2 * call.positions * call.rotary_dim));
    read.add(place_of("sines", call.sines, 2 * call.positions * call.rotary_dim));
  }
  check_written(written, read);
  if (gpu || asked) return rows;
  check_cache_values(call);
  if (call.starts) check_values("starts", call.starts, batch, 0, capacity_of(call));
  if (appends && rows) check_appended_pages(call);
  if (appends && rows && has_scales(call.k.dtype)) check_new_scales(call);
  return rows;
}

// ---- linear attention, RoPE

bool check(const LinearCall& call, bool gpu) {
  const TensorView &q = call.q, &v = call.v;
  for (const auto& [name, tensor] : {std::pair{"q", &call.q}, {"k", &call.k}, {"v", &call.v}, {"o", &call.o}}) {
    check_tensor(name, *tensor, gpu);
    check_float(name, tensor->dtype);
    require(tensor->batch == q.batch && tensor->heads == q.heads && tensor->tokens == q.tokens,
            "{} is [{}, {}, {}], q [{}, {}, {}] (batch, heads, tokens); they must be equal", name, tensor->batch,
            tensor->heads, tensor->tokens, q.batch, q.heads, q.tokens);
  }
  require(
      call.k.width == q.width && call.o.width == v.width,
      "widths {} of q, {} of k, {} of v, {} of o are not allowed; q and k must have one width, and v and o one width",
      q.width, call.k.width, v.width, call.o.width);
  if (call.k.dtype != q.dtype || v.dtype != q.dtype)
    refuse("types {} of q, {} of k, {} of v are not allowed; they must be equal", attn::name(q.dtype),
           attn::name(call.k.dtype), attn::name(v.dtype));
  if (call.o.dtype != q.dtype && call.o.dtype != DType::f32)
    refuse("o: {} is not allowed; allowed are the type of q, {}, and f32", attn::name(call.o.dtype),
           attn::name(q.dtype));
  const int64_t rows = count_rows(q);
  require((call.gates != nullptr) == (call.gate != GATE_NONE),
          "gates must be given if gate is not GATE_NONE, and must be missing if it is GATE_NONE");
  require(call.causal || call.gate == GATE_NONE, "gate is allowed only with causal");
  check_scale(call.scale);
  require(!call.normalised || call.scale == 0 || call.scale == 1,
          "scale {} is not allowed with normalised, which has no scale; 0 and 1 are", call.scale);
  require(!call.normalised || !call.initial_state,
          "initial_state is not allowed with normalised, because the sum of keys has no initial value");
  const int64_t states = q.batch * q.heads * q.width * v.width * 4;
  const int64_t gates = call.gate == GATE_HEAD ? q.heads : rows * (call.gate == GATE_CHANNEL ? q.width : 1);
  Places written, read;
  written.add(place_of("o", call.o));
  if (call.final_state) written.add(place_of("final_state", call.final_state, states));
  read.add(place_of("q", q));
  read.add(place_of("k", call.k));
  read.add(place_of("v", v));
  if (call.gates) read.add(place_of("gate", call.gates, 4 * gates));
  check_written(written, read);
  if (call.initial_state) {
    const Place before = place_of("initial_state", call.initial_state, states);
    check_apart(place_of("o", call.o), before);
    // The final state may overwrite the initial state.
    if (call.final_state && call.final_state != call.initial_state) {
      check_apart(place_of("final_state", call.final_state, states), before);
    }
  }
  return rows > 0;
}

bool check(const RopeCall& call, bool gpu, bool asked) {
  const TensorView& some = call.q.there() ? call.q : call.k;
  const auto text = [](const TensorView& t) {
    return fmt::format("[{}, {}, {}, {}] of {}", t.batch, t.heads, t.tokens, t.width, attn::name(t.dtype));
  };
  for (const auto& [name, in, out] : {std::tuple{"q", &call.q, &call.q_out}, {"k", &call.k, &call.k_out}}) {
    if (out->batch != in->batch || out->heads != in->heads || out->tokens != in->tokens || out->width != in->width ||
        out->dtype != in->dtype)
      refuse("{0}_out is {1}, {0} {2} (batch, heads, tokens, width); sizes and type must be equal", name, text(*out),
             text(*in));
    if (!in->there()) continue;
    if (in->batch != some.batch || in->tokens != some.tokens || in->width != some.width || in->dtype != some.dtype)
      refuse("k is {}, q {} (batch, heads, tokens, width); batch, tokens, width and type must be equal", text(call.k),
             text(call.q));
    check_tensor(name, *in, gpu);
    check_tensor(name, *out, gpu);
    check_float(name, in->dtype);
  }
  rope_check_config(call.config);
  require(call.config.head_dim == some.width, "head_dim {} is not allowed; it must be the width of the tensors, {}",
          call.config.head_dim, some.width);
  const Place q = place_of("q", call.q), k = place_of("k", call.k);
  const Place q_out = place_of("q_out", call.q_out), k_out = place_of("k_out", call.k_out);
  Places written, read;
  written.add(q_out);
  written.add(k_out);
  if (call.offsets) read.add(place_of("offsets", call.offsets, 4 * some.batch));
  check_written(written, read);
  check_apart(q_out, k);
  check_apart(k_out, q);
  // RoPE may rotate rows in place.
  if (!same(call.q, call.q_out)) check_apart(q_out, q);
  if (!same(call.k, call.k_out)) check_apart(k_out, k);
  if (call.offsets && !gpu && !asked) {
    check_values("offsets", call.offsets, some.batch, std::numeric_limits<int>::min(), most_int - (some.tokens - 1));
  }
  return count_rows(call.q) + count_rows(call.k) > 0;
}

}  // namespace attn
