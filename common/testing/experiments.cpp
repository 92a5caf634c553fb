// Every experiment in one program, with the devices of another file, such as reverse_backends.cpp: NAME OPTIONS... runs
// the experiment NAME as its own program does. cmake/Attn.cmake gives each experiment's main() the name NAME_main.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#define EXPERIMENT(name) extern "C" int name##_main(int argc, char** argv);
ATTN_EXPERIMENTS
#undef EXPERIMENT

int main(int argc, char** argv) {
  // An experiment starts its own program again, without the name.
  const char* name = std::getenv("ATTN_EXPERIMENT");
  if (!name) {
    if (argc < 2) return 2;
    name = argv[1];
    setenv("ATTN_EXPERIMENT", name, 1);
    --argc;
    ++argv;
  }
#define EXPERIMENT(known) \
  if (std::string_view(name) == #known) return known##_main(argc, argv);
  ATTN_EXPERIMENTS
#undef EXPERIMENT
  std::fprintf(stderr, "there is no experiment %s\n", name);
  return 2;
}
