// kb: from the records of the experiments to knowledge that can be searched, checked and compared.
#include "findings/kb/cli.h"

int main(int argc, char** argv) { return attn::kb::run_kb(argc, argv); }
