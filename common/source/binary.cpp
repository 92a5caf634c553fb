#include "common/source/binary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/base/json.h"

namespace attn {
namespace {

// FNV-1a over words of 8 bytes; each step also mixes the high half of the sum into the low half. Each step is
// invertible, so damage to a single word always changes the checksum. Other damage goes unnoticed with a probability of
// about 2^-64. SHA-256, which the project uses for identity, has a twentieth of the speed.
std::string checksum(std::string_view bytes) {
  uint64_t sum = 0xcbf29ce484222325 ^ bytes.size();
  while (!bytes.empty()) {
    uint64_t word = 0;
    const size_t taken = std::min(bytes.size(), sizeof word);
    std::memcpy(&word, bytes.data(), taken);
    sum = (sum ^ word) * 0x100000001b3;
    sum ^= sum >> 32;
    bytes.remove_prefix(taken);
  }
  return fmt::format("{:016x}", sum);
}

constexpr int format = 2;

}  // namespace

std::string serialize(const std::string& cache_key, const Binary& binary) {
  const Json head = {{"format", format},
                     {"cache_key", cache_key},
                     {"key", binary.key},
                     {"source_sha256", binary.source_sha256},
                     {"code_sha256", binary.code_sha256},
                     {"front_end_s", binary.times.front_end_s},
                     {"optimizer_s", binary.times.optimizer_s},
                     {"code_generation_s", binary.times.code_generation_s},
                     {"registers", binary.registers},
                     {"spill_bytes", binary.spill_bytes},
                     {"threadgroup_bytes", binary.threadgroup_bytes}};
  const std::string body = head.dump() + "\n" + binary.code;
  return checksum(body) + "\n" + body;
}

std::optional<Binary> deserialize(const std::string& cache_key, std::string_view text) {
  const size_t sum_end = text.find('\n');
  if (sum_end == std::string_view::npos) return std::nullopt;
  const std::string_view body = text.substr(sum_end + 1);
  if (checksum(body) != text.substr(0, sum_end)) return std::nullopt;
  const size_t head_end = body.find('\n');
  const auto head = parse_json(body.substr(0, head_end), false);
  try {
    if (head.at("format") != format || head.at("cache_key") != cache_key) return std::nullopt;
    Binary binary;
    binary.key = head.at("key");
    binary.source_sha256 = head.at("source_sha256");
    binary.code_sha256 = head.at("code_sha256");
    binary.times = {head.at("front_end_s"), head.at("optimizer_s"), head.at("code_generation_s")};
    binary.registers = head.at("registers");
    binary.spill_bytes = head.at("spill_bytes");
    binary.threadgroup_bytes = head.at("threadgroup_bytes");
    binary.code = body.substr(head_end + 1);
    return binary;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace attn
