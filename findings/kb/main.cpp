// kb: a knowledge base that searches, checks and compares the records of the experiments.
#include "findings/kb/cli.h"

int main(int argc, char** argv) { return attn::kb::run_kb(argc, argv); }
