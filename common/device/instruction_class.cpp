#include "common/device/instruction_class.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

namespace attn {
namespace {

bool begins(std::string_view text, std::initializer_list<std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(), [&](std::string_view one) { return text.starts_with(one); });
}
bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }
bool has_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) { return has(text, part); });
}

int bytes_of_operand(std::string_view name, std::string_view operands) {
  // The names of these instructions say the size: broadcasts, inserts, extracts, moves of half a register, scalars.
  if (has(name, "broadcastb")) return 1;
  if (has_any(name, {"broadcastw", "extrw", "insrw"})) return 2;
  if (has_any(name, {"broadcastd", "broadcastss"})) return 4;
  if (has_any(name, {"broadcastq", "broadcastsd", "32x2", "movhp", "movlp"})) return 8;
  if (has_any(name, {"32x4", "64x2", "f128", "i128"})) return 16;
  if (has_any(name, {"32x8", "64x4"})) return 32;
  if (name.ends_with("ss")) return 4;
  if (name.ends_with("sd")) return 8;
  if (has(operands, "{1to")) return name.ends_with("pd") || name.ends_with('q') ? 8 : 4;
  const bool one_element = name.ends_with("movd") || name.ends_with("movq") || has_any(name, {"pextr", "pinsr"});
  // movzbl, movslq and others widen a number: the letter after movz or movs is the size in memory.
  const bool widens = name.size() == 6 && begins(name, {"movz", "movs"});
  const int vector = has(operands, "%zmm") ? 64 : has(operands, "%ymm") ? 32 : has(operands, "%xmm") ? 16 : 0;
  if (vector == 0 || one_element) {
    const char size = begins(name, {"set"}) ? 'b' : widens ? name[4] : name.back();
    return size == 'q' ? 8 : size == 'w' ? 2 : size == 'b' ? 1 : 4;
  }
  // The elements in memory are smaller than the elements of the register.
  if (has_any(name, {"xbw", "xwd", "xdq", "pmovwb", "pmovdw", "pmovqd", "ph2ps", "ps2ph", "ps2pd", "dq2pd"})) {
    return vector / 2;
  }
  if (has_any(name, {"xbd", "xwq", "pmovdb", "pmovqw"})) return vector / 4;
  if (has_any(name, {"xbq", "pmovqb"})) return vector / 8;
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
  // Most instructions write their last operand. The operand in memory ends with a parenthesis, and is the last if no
  // comma with a register (", %") follows. A mask without a comma, " {%k1}", may follow.
  const bool last = operands.substr(operands.rfind(')')).find(", %") == operands.npos;
  const bool reads = begins(
      name, {"cmp", "test", "ucomi", "vucomi", "comi", "vcomi", "push", "mul", "imul", "div", "idiv", "btl", "btq"});
  classes.push_back(fmt::format("{}_{}", last && !reads ? "store" : "load", bytes_of_operand(name, operands)));
  return classes;
}

std::vector<std::string> aarch64_classes(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  const std::string_view name = text.substr(0, text.find_first_of(" \t"));
  std::string_view operands = text.substr(name.size());
  operands.remove_prefix(std::min(operands.find_first_not_of(" \t{"), operands.size()));
  if (begins(name, {"bfmmla", "smmla", "ummla", "usmmla"})) return {"matrix", "multiply_add"};
  if (begins(name, {"fmla", "fmls", "fmlal", "fmlsl", "fmadd", "fmsub", "fnmadd", "fnmsub", "bfdot", "bfmlal"})) {
    return {"multiply_add"};
  }
  if (name == "bl" || begins(name, {"blr"})) return {"call"};
  if (name == "b" || name == "br" || begins(name, {"b.", "cbz", "cbnz", "tbz", "tbnz"})) return {"branch"};
  const bool loads = begins(name, {"ld"}), stores = begins(name, {"st"});
  if ((!loads && !stores) || !has(operands, "[")) return {};
  if (operands.starts_with('z') || operands.starts_with('p')) return {};  // how long registers of SVE are is not known
  int bytes = 0;
  const auto of_element = [](char type) {
    return type == 'b' ? 1 : type == 'h' ? 2 : type == 's' || type == 'w' ? 4 : type == 'q' ? 16 : 8;
  };
  if (const size_t dot = operands.find('.'); operands.starts_with('v') && dot != operands.npos) {
    // Registers in braces, "v0.4s, v1.4s }": whole registers, or one element of each if a number follows.
    const std::string_view list = operands.substr(0, operands.find('}'));
    const size_t lanes = list.find_first_not_of("0123456789", dot + 1);
    if (lanes == list.npos) return {};
    const bool one_element = lanes == dot + 1 || name.ends_with('r');
    const int element = of_element(list[lanes]);
    const int count = one_element ? 1 : std::atoi(std::string(list.substr(dot + 1, lanes - dot - 1)).c_str());
    bytes = static_cast<int>(std::count(list.begin(), list.end(), 'v')) * count * element;
  } else if (const char size = name.back(); size == 'b' || size == 'h' || (size == 'w' && has(name, "rs"))) {
    bytes = of_element(size);
  } else {
    bytes = of_element(operands.front()) * (begins(name, {"ldp", "stp", "ldnp", "stnp"}) ? 2 : 1);
  }
  return {fmt::format("{}_{}", loads ? "load" : "store", bytes)};
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
