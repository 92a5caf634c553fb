// Reader and writer of safetensors files. Files may come from anywhere: the reader trusts nothing in the header.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/data/tensor.h"

namespace attn {
namespace {

using nlohmann::json;

constexpr uint64_t max_header_bytes = 100'000'000;  // the limit of the format's own reader

/// The bytes to read, and their name in messages.
struct Source {
  std::string origin;
  uint64_t size;
  std::function<void(uint64_t offset, std::span<std::byte> target)> read;

  template <typename... Arguments>
  [[noreturn]] void fail(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    throw BadInput(origin + ": " + fmt::format(format, std::forward<Arguments>(arguments)...));
  }
};

/// Where a tensor lies in the file, from its header entry.
struct Entry {
  DType dtype;
  std::vector<int64_t> shape;
  uint64_t begin, end;  // bytes from the start of the data
};

constexpr std::array<std::pair<std::string_view, DType>, 3> stored_dtypes = {
    {{"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16}}};

/// Returns nullopt if a size is negative, or if the bytes exceed INT64_MAX, even if a later size is 0.
std::optional<uint64_t> stored_bytes(DType dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = static_cast<int64_t>(size_bytes(dtype));
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

struct Header {
  json entries;  // of the wanted tensors
  uint64_t data_offset;
};

Header read_header(const Source& source, const std::set<std::string>& wanted) {
  uint64_t header_bytes = 0;
  if (source.size < sizeof(header_bytes)) source.fail("{} bytes are no safetensors file", source.size);
  source.read(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  if (header_bytes > max_header_bytes) {
    source.fail("not a safetensors file: a header of {} bytes is announced, at most {} are allowed", header_bytes,
                max_header_bytes);
  }
  if (header_bytes > source.size - sizeof(header_bytes)) {
    source.fail("truncated: a header of {} bytes is announced, {} bytes follow", header_bytes,
                source.size - sizeof(header_bytes));
  }
  std::string text(header_bytes, '\0');
  source.read(sizeof(header_bytes), std::as_writable_bytes(std::span(text)));

  // Refuses JSON that is nested deeper than {name: {key: [values]}}, before the nesting costs memory or time.
  std::set<std::string> names;
  const auto keep = [&](int depth, json::parse_event_t event, json& parsed) {
    if ((event == json::parse_event_t::object_start && depth > 1) ||
        (event == json::parse_event_t::array_start && depth != 2)) {
      source.fail("the header is not a JSON object of tensor descriptions");
    }
    if (event != json::parse_event_t::key) return true;
    const std::string& key = parsed.get_ref<const std::string&>();
    if (depth > 1) return key == "dtype" || key == "shape" || key == "data_offsets";
    if (!names.insert(key).second) source.fail("the header names tensor {} twice", parsed.dump());
    return wanted.contains(key);
  };
  json entries;
  try {
    entries = json::parse(text, keep);
  } catch (const json::parse_error& error) {
    source.fail("the header is not valid JSON (byte {})", error.byte);
  } catch (const json::exception&) {
    source.fail("the header holds a number that is out of range");
  }
  if (!entries.is_object()) source.fail("the header is not a JSON object of tensor descriptions");
  for (const std::string& name : wanted) {
    if (entries.contains(name)) continue;
    names.erase("__metadata__");
    std::vector<std::string> some;
    for (auto it = names.begin(); it != names.end() && some.size() < 8; ++it) some.push_back(json(*it).dump());
    source.fail("there is no tensor \"{}\"; the file has {}: {}{}", name, names.size(), fmt::join(some, ", "),
                some.size() < names.size() ? ", ..." : "");
  }
  return {std::move(entries), sizeof(header_bytes) + header_bytes};
}

/// Returns nullopt if the value of `key` is no list of non-negative integers that fit int64.
std::optional<std::vector<int64_t>> sizes(const json& entry, const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_array()) return std::nullopt;
  std::vector<int64_t> result;
  for (const json& item : *found) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > INT64_MAX) return std::nullopt;
    result.push_back(item.get<int64_t>());
  }
  return result;
}

Entry read_entry(const Source& source, const std::string& name, const json& entry, uint64_t data_bytes) {
  if (!entry.is_object()) source.fail("tensor \"{}\" is not described by a JSON object", name);
  const json dtype_name = entry.value("dtype", json());
  const auto dtype = std::find_if(stored_dtypes.begin(), stored_dtypes.end(),
                                  [&](const auto& known) { return dtype_name == json(known.first); });
  if (dtype == stored_dtypes.end()) {
    source.fail("tensor \"{}\" has dtype {}; F32, F16 and BF16 can be read", name, dtype_name.dump());
  }
  const auto shape = sizes(entry, "shape");
  if (!shape) source.fail("tensor \"{}\" has no shape made of non-negative integers", name);
  const auto offsets = sizes(entry, "data_offsets");
  if (!offsets || offsets->size() != 2) source.fail("tensor \"{}\" has no data_offsets [begin, end]", name);

  const Entry result{dtype->second, *shape, static_cast<uint64_t>(offsets->front()),
                     static_cast<uint64_t>(offsets->back())};
  if (result.begin > result.end || result.end > data_bytes) {
    source.fail("tensor \"{}\" has data_offsets [{}, {}], which are no range of the {} bytes of data", name,
                result.begin, result.end, data_bytes);
  }
  const auto bytes = stored_bytes(result.dtype, result.shape);
  if (bytes != result.end - result.begin) {
    source.fail("tensor \"{}\" of dtype {} and shape [{}] does not take the {} bytes of its data_offsets", name,
                dtype->first, fmt::join(result.shape, ", "), result.end - result.begin);
  }
  return result;
}

std::map<std::string, StoredTensor> read_tensors(const Source& source, const std::vector<std::string>& names) {
  const Header header = read_header(source, {names.begin(), names.end()});
  std::map<std::string, Entry> entries;
  for (const auto& [name, entry] : header.entries.items()) {
    const Entry added = read_entry(source, name, entry, source.size - header.data_offset);
    for (const auto& [other, placed] : entries) {
      if (std::max(added.begin, placed.begin) < std::min(added.end, placed.end)) {
        source.fail("tensors \"{}\" and \"{}\" overlap", other, name);
      }
    }
    entries.emplace(name, added);
  }
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, entry] : entries) {
    StoredTensor& tensor = tensors[name] = {entry.dtype, entry.shape, std::vector<std::byte>(entry.end - entry.begin)};
    source.read(header.data_offset + entry.begin, tensor.data);
  }
  return tensors;
}

}  // namespace

std::map<std::string, StoredTensor> read_safetensors(const std::string& path, const std::vector<std::string>& names) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) throw BadInput(path + ": no such file");
  if (!std::filesystem::is_regular_file(path, error)) throw BadInput(path + ": is not a regular file");
  const uint64_t size = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) throw BadInput(path + ": cannot be opened for reading");
  return read_tensors({path, size,
                       [&](uint64_t offset, std::span<std::byte> target) {
                         file.seekg(static_cast<std::streamoff>(offset));
                         file.read(reinterpret_cast<char*>(target.data()), static_cast<std::streamsize>(target.size()));
                         if (!file) throw BadInput(fmt::format("{}: reading {} bytes failed", path, target.size()));
                       }},
                      names);
}

std::map<std::string, StoredTensor> parse_safetensors(std::span<const std::byte> bytes, const std::string& origin,
                                                      const std::vector<std::string>& names) {
  return read_tensors({origin, bytes.size(),
                       [&](uint64_t offset, std::span<std::byte> target) {
                         std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), target.size(),
                                     target.begin());
                       }},
                      names);
}

void write_safetensors(const std::string& path, const std::map<std::string, StoredTensor>& tensors) {
  json header = json::object();
  uint64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    if (static_cast<size_t>(tensor.dtype) >= stored_dtypes.size()) {
      throw std::invalid_argument(
          fmt::format("tensor \"{}\" is {}; only f32, f16 and bf16 are written", name, attn::name(tensor.dtype)));
    }
    if (stored_bytes(tensor.dtype, tensor.shape) != tensor.data.size()) {
      throw std::invalid_argument(
          fmt::format("tensor \"{}\" of shape [{}] has {} bytes of data, which do not fit the shape", name,
                      fmt::join(tensor.shape, ", "), tensor.data.size()));
    }
    const uint64_t begin = end;
    end += tensor.data.size();
    header[name] = {{"dtype", stored_dtypes[static_cast<size_t>(tensor.dtype)].first},
                    {"shape", tensor.shape},
                    {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  const uint64_t header_bytes = text.size();

  // The rename below would replace a device such as /dev/full by a file.
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path)) {
    throw BadInput(path + ": cannot be written: it is no regular file");
  }
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  std::ofstream file(temporary, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const auto& [name, tensor] : tensors) {
    file.write(reinterpret_cast<const char*>(tensor.data.data()), static_cast<std::streamsize>(tensor.data.size()));
  }
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) {
    const std::string reason = error ? error.message() : std::strerror(errno);
    std::filesystem::remove(temporary, error);
    throw BadInput(path + ": cannot be written: " + reason);
  }
}

}  // namespace attn
