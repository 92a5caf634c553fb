#include "common/backends/metal/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "common/backends/metal/operations.h"

namespace attn {

std::string metal_constants(const KernelSource& source,
                            const std::function<std::string(const std::string& name)>& declare) {
  std::string text;
  for (const auto& [name, value] : source.constants) {
    if (source.run_time.contains(name)) {
      text += declare(name);
    } else {
      const bool is_int = value == static_cast<int>(value);
      text += fmt::format("constexpr constant {0} {1} = {2};\n#define {1}_VALUE ({2})\n", is_int ? "int" : "long", name,
                          value);
    }
  }
  return text;
}

std::string metal_text(const KernelSource& source) {
  int number = 0;
  const std::string constants = metal_constants(source, [&](const std::string& name) {
    return fmt::format("constant int {} [[function_constant({})]];\n", name, number++);
  });
  return "#include <metal_stdlib>\n" + joined_text(source, constants);
}

bool has_function_table(const std::string& metal_text) {
  return metal_text.find("visible_function_table<") != std::string::npos;
}

size_t stitchable_parameters(const std::string& metal_text, const std::string& entry) {
  const std::regex function(fmt::format(R"(\n\[\[stitchable\]\] \w+ {}\(([^)]*)\))", entry));
  std::smatch found;
  if (!std::regex_search(metal_text, found, function)) return 0;
  return static_cast<size_t>(std::count(found[1].first, found[1].second, ',')) + 1;
}

int metal_language(const KernelSource& source) { return source.assembler == as_metal_3_2 ? 320 : 310; }

}  // namespace attn
