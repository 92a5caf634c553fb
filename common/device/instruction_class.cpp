#include "common/device/instruction_class.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

namespace attn {
namespace {

bool begins(std::string_view text, std::initializer_list<std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(), [&](std::string_view one) { return text.starts_with(one); });
}
bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// Instructions whose operand in memory has a fixed size, whatever their register is.
constexpr std::array<std::pair<std::string_view, int>, 17> fixed_bytes{{{"broadcastb", 1},
                                                                        {"broadcastw", 2},
                                                                        {"broadcastd", 4},
                                                                        {"broadcastss", 4},
                                                                        {"broadcastq", 8},
                                                                        {"broadcastsd", 8},
                                                                        {"32x2", 8},
                                                                        {"64x2", 16},
                                                                        {"32x4", 16},
                                                                        {"f128", 16},
                                                                        {"i128", 16},
                                                                        {"32x8", 32},
                                                                        {"64x4", 32},
                                                                        {"movhp", 8},
                                                                        {"movlp", 8},
                                                                        {"extrw", 2},
                                                                        {"insrw", 2}}};
// Instructions that convert between elements of different sizes: how many times larger than the operand in memory the
// register is.
constexpr std::array<std::pair<std::string_view, int>, 14> register_ratio{{{"xbw", 2},
                                                                           {"xwd", 2},
                                                                           {"xdq", 2},
                                                                           {"xbd", 4},
                                                                           {"xwq", 4},
                                                                           {"xbq", 8},
                                                                           {"pmovwb", 2},
                                                                           {"pmovdw", 2},
                                                                           {"pmovqd", 2},
                                                                           {"pmovdb", 4},
                                                                           {"pmovqw", 4},
                                                                           {"pmovqb", 8},
                                                                           {"ph2ps", 2},
                                                                           {"ps2ph", 2}}};

int bytes_of_operand(std::string_view name, std::string_view operands) {
  for (const auto& [part, bytes] : fixed_bytes) {
    if (has(name, part)) return bytes;
  }
  if (name.ends_with("ss")) return 4;
  if (name.ends_with("sd")) return 8;
  if (has(operands, "{1to")) return name.ends_with("pd") || name.ends_with('q') ? 8 : 4;
  const bool one_element = name.ends_with("movd") || name.ends_with("movq") || has(name, "pextr") || has(name, "pinsr");
  const int vector = one_element             ? 0
                     : has(operands, "%zmm") ? 64
                     : has(operands, "%ymm") ? 32
                     : has(operands, "%xmm") ? 16
                                             : 0;
  if (vector == 0) return name.ends_with('q') ? 8 : name.ends_with('w') ? 2 : name.ends_with('b') ? 1 : 4;
  for (const auto& [part, times] : register_ratio) {
    if (has(name, part)) return vector / times;
  }
  return vector;
}

}  // namespace

std::vector<std::string> x86_classes(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  const std::string_view name = text.substr(0, text.find_first_of(" \t"));
  const std::string_view operands = text.substr(name.size());
  std::vector<std::string> classes;
  if (begins(name, {"vfmadd", "vfmsub", "vfnmadd", "vfnmsub", "vdpbf16"})) classes.emplace_back("multiply_add");
  if (begins(name, {"tdp"})) classes.emplace_back("matrix");
  if (begins(name, {"call"})) classes.emplace_back("call");
  if (begins(name, {"j"})) classes.emplace_back("branch");
  const bool touches = has(operands, "(") && !begins(name, {"lea", "nop", "prefetch", "call", "j"});
  if (!touches) return classes;
  // The last operand is the destination. An operand in memory ends with a parenthesis. The operand in memory is the
  // last operand if no register (", %") follows the parenthesis. A mask, " {%k1}", may follow.
  const bool last = operands.substr(operands.rfind(')')).find(", %") == operands.npos;
  const bool reads = begins(name, {"cmp", "test", "ucomi", "vucomi", "comi", "vcomi", "push"});
  classes.push_back(fmt::format("{}_{}", last && !reads ? "store" : "load", bytes_of_operand(name, operands)));
  return classes;
}

std::vector<std::string> sass_classes(std::string_view name) {
  const int bytes = has(name, ".128")                        ? 16
                    : has(name, ".64")                       ? 8
                    : has(name, ".U16") || has(name, ".S16") ? 2
                    : has(name, ".U8") || has(name, ".S8")   ? 1
                                                             : 4;
  if (begins(name, {"HGMMA", "HMMA", "IGMMA", "QGMMA", "BGMMA", "IMMA", "DMMA"})) return {"matrix"};
  if (begins(name, {"FFMA", "HFMA2", "DFMA"})) return {"multiply_add"};
  if (begins(name, {"MUFU.EX2"})) return {"exponential"};
  if (begins(name, {"UTMALDG"})) return {"load_tile"};
  if (begins(name, {"UTMASTG"})) return {"store_tile"};
  if (begins(name, {"LDSM"})) return {"load_16"};
  if (begins(name, {"STSM"})) return {"store_16"};
  if (begins(name, {"LDG", "LDS", "LDL", "LD."})) return {fmt::format("load_{}", bytes)};
  if (begins(name, {"STG", "STS", "STL", "ST."})) return {fmt::format("store_{}", bytes)};
  if (begins(name, {"CALL"})) return {"call"};
  if (begins(name, {"BRA", "BRX", "JMP"})) return {"branch"};
  return {};
}

}  // namespace attn
