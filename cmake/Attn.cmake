# Shared by the project's CMake files: flags of compilers and linkers, functions that find LLVM, CUDA's headers and
# PyTorch, and one function per kind of target.

add_library(attn_flags INTERFACE)
target_compile_options(attn_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # gcc 12 gives these warnings falsely, for string + string (PR 105651).
  target_compile_options(attn_flags INTERFACE -Wno-restrict -Wno-stringop-overflow)
  # These parameters make gcc collect garbage less often: a file compiles in 6/7 of the time, and takes 1/5 more memory.
  target_compile_options(attn_flags INTERFACE "SHELL:--param ggc-min-expand=1000"
                                              "SHELL:--param ggc-min-heapsize=1000000")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  target_compile_options(attn_flags INTERFACE -Wno-psabi)  # gcc before 10.1 passed std::pair<double, double> otherwise
  if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)  # which has the type in C only
    target_compile_definitions(attn_flags INTERFACE _Float16=__fp16)
  endif()
endif()
target_include_directories(attn_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(attn_flags INTERFACE nlohmann_json::nlohmann_json fmt::fmt spdlog::spdlog Threads::Threads)
if(ATTN_SANITIZE)
  target_compile_options(attn_flags INTERFACE -fsanitize=${ATTN_SANITIZE} -fno-omit-frame-pointer
                                              -fno-sanitize-recover=all
                                              -fno-sanitize=vptr)  # vptr needs RTTI everywhere, and LLVM has no RTTI
  target_link_options(attn_flags INTERFACE -fsanitize=${ATTN_SANITIZE})
endif()

# GNU's ld takes a second to link one program, because it reads all names in LLVM's libraries. lld and gold take a
# quarter of a second. The build takes the first of lld and gold that can link this compiler's libraries.
include(CheckLinkerFlag)
foreach(linker lld gold)
  check_linker_flag(CXX -fuse-ld=${linker} ATTN_LINKS_WITH_${linker})
  if(ATTN_LINKS_WITH_${linker})
    string(APPEND CMAKE_EXE_LINKER_FLAGS " -fuse-ld=${linker}")
    break()
  endif()
endforeach()

# The flags of bookkeeping code: code that has no loops over elements, and for which no measurement waits. Compiling
# this code takes most of a build's time, so the compiler optimises it little.
add_library(attn_cold INTERFACE)
target_compile_options(attn_cold INTERFACE -Og)

# The headers on which the compiler spends most time. These headers are precompiled three times: for the libraries, for
# bookkeeping and for the tests, because a file and its precompiled header must be compiled with the same flags. The
# asan preset builds without precompiled headers, and so finds files that lack an #include.
set(ATTN_SLOW_HEADERS <algorithm> <filesystem> <fstream> <functional> <map> <memory> <optional> <set> <sstream> <string>
                      <vector> <fmt/format.h> ${PROJECT_SOURCE_DIR}/common/base/json.h)
file(WRITE ${PROJECT_BINARY_DIR}/empty.cpp "")
foreach(headers attn_slow_headers attn_slow_headers_cold)
  add_library(${headers} OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/empty.cpp)
  target_link_libraries(${headers} PRIVATE attn_flags)
  target_precompile_headers(${headers} PRIVATE ${ATTN_SLOW_HEADERS})
endforeach()
target_link_libraries(attn_slow_headers_cold PRIVATE attn_cold)

# The flags of tests. Tests are not measured, so the compiler optimises them little.
add_library(attn_test_flags INTERFACE)
if(ATTN_TESTS)
  target_link_libraries(attn_test_flags INTERFACE attn_flags GTest::gtest)
  target_compile_options(attn_test_flags INTERFACE -Og)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # gcc 12 gives this warning falsely, for std::variant.
    target_compile_options(attn_test_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
  target_compile_definitions(attn_test_flags INTERFACE ATTN_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                                       ATTN_BINARY_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
                                                       ATTN_TEST_KERNELS="${PROJECT_BINARY_DIR}/test_kernels"
                                                       ATTN_SANITIZE="${ATTN_SANITIZE}")
  add_library(attn_test_main OBJECT ${PROJECT_SOURCE_DIR}/common/testing/main.cpp)
  target_link_libraries(attn_test_main PRIVATE attn_test_flags)
  # Without position-independent code, like the executables that reuse the precompiled header of attn_test_main.
  set_target_properties(attn_test_main PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_precompile_headers(attn_test_main PRIVATE ${ATTN_SLOW_HEADERS} <gtest/gtest.h>)
endif()

# Files NAME_linux.cpp and NAME_macos.cpp, also of tests, are for one system only.
if(APPLE)
  set(ATTN_OTHER_SYSTEM linux)
else()
  set(ATTN_OTHER_SYSTEM macos)
endif()

# Finds LLVM and clang as libraries, for the CPU device and the emulated Metal device. The project is tested with
# version 19. The build takes the version that -DLLVM_DIR=... names, or the first one in /usr/lib/llvm-{19,20,21,18}, or
# on a Mac in the same folders of Homebrew; versions before 18 do not count. Sets ATTN_HAS_CPU, and ATTN_LLVM_TOOLS, the
# folder of LLVM's programs. Without LLVM the build leaves both devices out.
function(attn_find_llvm)
  set(folders /usr/lib/llvm-)
  if(APPLE)
    set(folders /opt/homebrew/opt/llvm@)
  endif()
  foreach(prefix "" ${folders}19 ${folders}20 ${folders}21 ${folders}18)
    if(prefix)
      set(where PATHS ${prefix} NO_DEFAULT_PATH)
    elseif(NOT LLVM_DIR)
      continue()
    endif()
    find_package(LLVM CONFIG QUIET ${where})
    if(LLVM_FOUND AND LLVM_PACKAGE_VERSION VERSION_GREATER_EQUAL 18)
      find_package(Clang CONFIG QUIET PATHS ${LLVM_INSTALL_PREFIX} NO_DEFAULT_PATH)
      if(TARGET clang-cpp)
        message(STATUS "CPU device, emulated Metal device, msl_check: clang/LLVM ${LLVM_PACKAGE_VERSION}")
        add_library(attn_llvm INTERFACE)
        target_include_directories(attn_llvm SYSTEM INTERFACE ${LLVM_INCLUDE_DIRS} ${CLANG_INCLUDE_DIRS})
        target_link_libraries(attn_llvm INTERFACE clang-cpp LLVM)
        set(ATTN_HAS_CPU ON PARENT_SCOPE)
        set(ATTN_LLVM_TOOLS ${LLVM_TOOLS_BINARY_DIR} PARENT_SCOPE)
        return()
      endif()
    endif()
    unset(LLVM_DIR CACHE)
    unset(Clang_DIR CACHE)
  endforeach()
  message(STATUS "CPU device, emulated Metal device, msl_check: left out (llvm-19-dev, libclang-19-dev, "
                 "libclang-cpp19-dev and clang-19 would bring them)")
  set(ATTN_HAS_CPU OFF PARENT_SCOPE)
endfunction()

# Finds the CUDA toolkit's headers, for the CUDA device (-DATTN_CUDA_INCLUDE=... names their folder). CUDA's libraries
# are opened at run time. Sets ATTN_HAS_CUDA. Without the headers the build leaves the CUDA device out.
function(attn_find_cuda)
  find_path(ATTN_CUDA_INCLUDE nvrtc.h HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include)
  if(ATTN_CUDA_INCLUDE AND EXISTS ${ATTN_CUDA_INCLUDE}/cuda.h)
    message(STATUS "CUDA device: headers in ${ATTN_CUDA_INCLUDE}")
    set(ATTN_HAS_CUDA ON PARENT_SCOPE)
  else()
    message(STATUS "CUDA device: left out; building it needs cuda.h and nvrtc.h of the CUDA toolkit")
    set(ATTN_HAS_CUDA OFF PARENT_SCOPE)
  endif()
endfunction()

# Finds metal-cpp, Apple's headers of Metal for C++; scripts/tools/metal_cpp fetches them. -DATTN_METAL_CPP=... names the
# folder that has Metal/Metal.hpp. Sets ATTN_HAS_METAL on a Mac, for the device `metal`, and elsewhere ATTN_TEST_METAL, for
# tests of the device's code. -DATTN_METAL_STAND_INS=... names a folder of headers that stand in for the system's.
function(attn_find_metal)
  set(ATTN_HAS_METAL OFF PARENT_SCOPE)
  set(ATTN_TEST_METAL OFF PARENT_SCOPE)
  find_path(ATTN_METAL_CPP Metal/Metal.hpp PATHS ${PROJECT_SOURCE_DIR}/build/metal_cpp NO_DEFAULT_PATH)
  if(NOT ATTN_METAL_CPP)
    message(STATUS "Metal device: left out; scripts/tools/metal_cpp fetches the headers that building it needs")
  elseif(APPLE)
    message(STATUS "Metal device: headers in ${ATTN_METAL_CPP}")
    set(ATTN_HAS_METAL ON PARENT_SCOPE)
  elseif(ATTN_TESTS AND ATTN_HAS_CPU AND NOT ATTN_SANITIZE AND EXISTS ${ATTN_LLVM_TOOLS}/clang++)
    message(STATUS "Tests of the Metal device's code: headers in ${ATTN_METAL_CPP}")
    set(ATTN_TEST_METAL ON PARENT_SCOPE)
  endif()
endfunction()

# Adds the target attn_torch, PyTorch's operators (docs/extension.md), if -DATTN_TORCH=... names an installed PyTorch:
# the folder that has `include` and `lib`, or /usr for Debian's libtorch-dev. Building the operators does not need CUDA.
set(ATTN_TORCH "" CACHE PATH "PyTorch to build the operators attn::* for")
function(attn_find_torch)
  if(NOT ATTN_TORCH)
    # An earlier build may have left this file. Tests take the file as a sign that the build has PyTorch.
    file(REMOVE ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/libattn_torch${CMAKE_SHARED_LIBRARY_SUFFIX})
    return()
  endif()
  find_library(library torch HINTS ${ATTN_TORCH}/lib ${ATTN_TORCH}/lib/x86_64-linux-gnu ${ATTN_TORCH}/lib/aarch64-linux-gnu
               NO_DEFAULT_PATH NO_CACHE REQUIRED)  # not cached: ATTN_TORCH may name another folder next time
  get_filename_component(folder ${library} DIRECTORY)
  add_library(attn_libtorch INTERFACE)
  target_include_directories(attn_libtorch SYSTEM INTERFACE ${ATTN_TORCH}/include
                                                            ${ATTN_TORCH}/include/torch/csrc/api/include)
  target_compile_definitions(attn_libtorch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  set(libraries torch torch_cpu c10)
  list(TRANSFORM libraries PREPEND ${folder}/lib)
  list(TRANSFORM libraries APPEND ${CMAKE_SHARED_LIBRARY_SUFFIX})
  # PyTorch's libraries contain parts of an older libstdc++. The linker must find the system's libstdc++ first.
  target_link_libraries(attn_libtorch INTERFACE $<$<NOT:$<BOOL:${APPLE}>>:stdc++> ${libraries})
  add_library(attn_torch SHARED ${PROJECT_SOURCE_DIR}/python/csrc/operators.cpp)
  target_include_directories(attn_torch PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(attn_torch PRIVATE attn attn_libtorch)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # at::parallel_for needs -fopenmp in the file that calls it. The operators must run on the threads of PyTorch's own
    # libgomp. So attn_torch is not linked with a libgomp; the loader finds OpenMP's functions in PyTorch's libraries.
    target_compile_options(attn_torch PRIVATE -fopenmp)
  endif()
  set(origin "$ORIGIN")
  if(APPLE)
    set(origin "@loader_path")
  endif()
  set_target_properties(attn_torch PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
                                              BUILD_RPATH "${origin}" INSTALL_RPATH "${origin}"
                                              INSTALL_RPATH_USE_LINK_PATH ON)
endfunction()

# attn_add_library(NAME FOLDER [COLD] [KNOWS LIBRARIES...] [LINKS LIBRARIES...]): makes a library of the sources of a
# folder. Of the project's headers, the library may include the headers of its own folder, of common/kernel, of the
# libraries that it KNOWS, and of the libraries that those libraries know. The build stops at an #include of any other
# header of the project. LINKS are libraries to link with, whose headers no header of the folder includes. COLD: the
# whole library is bookkeeping.
function(attn_add_library name folder)
  cmake_parse_arguments(ARG "COLD" "" "KNOWS;LINKS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main.cpp$")
  list(FILTER sources EXCLUDE REGEX "_${ATTN_OTHER_SYSTEM}.cpp$")
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC attn_flags ${ARG_KNOWS} PRIVATE ${ARG_LINKS})
  if(ARG_COLD)
    target_link_libraries(${name} PRIVATE attn_cold)
    target_precompile_headers(${name} REUSE_FROM attn_slow_headers_cold)
  else()
    target_precompile_headers(${name} REUSE_FROM attn_slow_headers)
  endif()
  set(folders ${folder})
  foreach(known ${ARG_KNOWS})
    get_target_property(more ${known} ATTN_FOLDERS)
    if(more)
      list(APPEND folders ${more})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  set_target_properties(${name} PROPERTIES ATTN_FOLDERS "${folders}")
  attn_check_includes(${name} ${folder} "${folders}")
endfunction()

# Makes the build of a target stop if a file of `folder` includes a file of the project that lies neither in one of
# `folders` nor in common/kernel. Tests are not checked.
function(attn_check_includes target folder folders)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.h ${PROJECT_SOURCE_DIR}/${folder}/*.cpp
       ${PROJECT_SOURCE_DIR}/${folder}/*.cu ${PROJECT_SOURCE_DIR}/${folder}/*.metal)
  list(FILTER files EXCLUDE REGEX "/tests/")
  set(stamp ${PROJECT_BINARY_DIR}/includes/${target}.ok)
  add_custom_command(OUTPUT ${stamp}
                     COMMAND ${CMAKE_COMMAND} -D "ROOT=${PROJECT_SOURCE_DIR}" -D "FILES=${files}" -D "FOLDERS=${folders}"
                             -D "STAMP=${stamp}" -P ${PROJECT_SOURCE_DIR}/cmake/check_includes.cmake
                     DEPENDS ${files} ${PROJECT_SOURCE_DIR}/cmake/check_includes.cmake
                     COMMENT "Checking the includes of ${folder}" VERBATIM)
  target_sources(${target} PRIVATE ${stamp})
endfunction()

# Filters of tests that only `scripts/test --all` runs. `scripts/test` runs tests of the same kernels with other
# function constants, or compiled for another host.
set(ATTN_OTHER_FORMS */tiled_scalar* */tuned_copy* */tuned_pairs* *as_floats* */x86_64_v2 */x86_64_v3 */x86_64_v4
                     */cascadelake */znver4)

# attn_add_tests(LIBRARY FOLDER [LINKS LIBRARIES...] [PROGRAMS TARGETS...] [GPU FILTER] [GPU_PARTS N] [ALONE]
# [LONG FILTERS...] [SOME FILTERS...] [NO_DEVICE]):
# makes one GoogleTest binary, LIBRARY_test, of FOLDER/tests/*_test.cpp. ctest knows each test of the binary. The binary
# exits with 77 if every test that it should run was skipped. A file cpu_*_test.cpp or cuda_*_test.cpp uses code of the
# device in its name; a build without this device leaves the file out. The device under test is the CPU, or the device
# that ATTN_TEST_DEVICE names.
#   PROGRAMS   programs that the tests run
#   LONG       The tests that these filters select have the label `long` instead of `cpu`. `scripts/test` leaves them
#              out, `scripts/test --all` runs them, with all their cases. Tests that ATTN_OTHER_FORMS selects have this
#              label too.
#   SOME       A test that these filters select runs some of its cases (common/testing/some.h). For each of these tests
#              ctest has a second test, NAME.all, with the label `long`, that runs all cases.
#   GPU        ctest also runs the tests that this filter selects with a GPU as the device under test. For ctest these
#              are N tests (GPU_PARTS, eight by default), gpu.LIBRARY_test.1 to N, each of which runs a part of the
#              selected tests. ctest begins with the libraries that have the most parts.
#   ALONE      no other test runs while one of the tests gpu.* runs
#   NO_DEVICE  the binary is linked without the compiler of GPU kernels (testing/cuda_compiler.h)
#
# Names of tests and suites decide more:
#   Timing in the name of a test     The test judges times, and runs while no other test runs.
#   Gpu begins a suite's name        The tests need a GPU.
#   Metal begins a suite's name      The tests run one odd shape for each kernel and type. Label: `metal`.
#   MetalFull begins a suite's name  The tests run more shapes. Label: `metal_full`. Only `scripts/test --all` runs
#                                    these tests.
# ctest begins with the tests that run programs or read all recorded runs, because these tests take longest.
function(attn_add_tests library folder)
  cmake_parse_arguments(ARG "ALONE;NO_DEVICE" "GPU;GPU_PARTS" "LINKS;PROGRAMS;LONG;SOME" ${ARGN})
  file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/tests/*_test.cpp)
  # Files of tests use the same names more often than files of a library, so a unity build joins at most eight files.
  # A device that a build lacks takes files out of a group, but moves none: files that compile together in one build do
  # so in each.
  set(place 0)
  foreach(test IN LISTS tests)
    math(EXPR group "${place} / 8")
    math(EXPR place "${place} + 1")
    set_source_files_properties(${test} PROPERTIES UNITY_GROUP ${library}_test_${group})
  endforeach()
  if(NOT ATTN_HAS_CPU)
    list(FILTER tests EXCLUDE REGEX "/cpu_[a-z_]*test.cpp$")
  endif()
  if(NOT ATTN_HAS_CUDA)
    list(FILTER tests EXCLUDE REGEX "/cuda_[a-z_]*test.cpp$")
  endif()
  list(FILTER tests EXCLUDE REGEX "_${ATTN_OTHER_SYSTEM}_test.cpp$")
  if(NOT ATTN_TESTS OR NOT tests)
    return()
  endif()
  set(name ${library}_test)
  add_executable(${name} ${tests})
  if(NOT ARG_NO_DEVICE)
    target_link_libraries(${name} PRIVATE attn_test_compiler)
  endif()
  target_link_libraries(${name} PRIVATE ${library} ${ARG_LINKS} attn_test_flags attn_test_main)
  target_precompile_headers(${name} REUSE_FROM attn_test_main)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF UNITY_BUILD_MODE GROUP)
  target_compile_definitions(${name} PRIVATE ATTN_TEST_DATA="${PROJECT_SOURCE_DIR}/${folder}")
  if(ARG_PROGRAMS)
    add_dependencies(${name} ${ARG_PROGRAMS})
  endif()
  set(seconds 600)
  if(CMAKE_CROSSCOMPILING)  # an emulator runs the tests; a test that compiles many kernels takes a hundred times as long
    set(seconds 3600)
  endif()
  set(properties SKIP_RETURN_CODE 77 TIMEOUT ${seconds})
  string(JOIN ":" long ${ARG_LONG} ${ATTN_OTHER_FORMS})
  set(first "*CliTest.*:*ProgramsTest.*:*.RecordedRuns*")
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_FILTER "-*Timing*:Gpu*:Metal*:${first}:${long}"
                       PROPERTIES LABELS cpu ${properties})
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_FILTER "${first}-*Timing*:${long}"
                       PROPERTIES LABELS cpu COST 1 ${properties})
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_FILTER "*Timing*-Gpu*" PROPERTIES LABELS cpu ${properties} RUN_SERIAL ON)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_FILTER "Metal*-MetalFull*:${long}"
                       PROPERTIES LABELS metal ${properties})
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_FILTER "MetalFull*" PROPERTIES LABELS metal_full ${properties})
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_FILTER "${long}-Gpu*"
                       PROPERTIES LABELS long ENVIRONMENT ATTN_TEST_ALL=1 ${properties})
  if(ARG_SOME)
    string(JOIN ":" some ${ARG_SOME})
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_FILTER "${some}-${long}" TEST_SUFFIX ".all"
                         PROPERTIES LABELS long ENVIRONMENT ATTN_TEST_ALL=1 ${properties})
  endif()
  if(ARG_GPU)
    set(parts ${ARG_GPU_PARTS})
    if(NOT parts)
      set(parts 8)
    endif()
    if(ARG_ALONE)
      set(alone ON)
    else()
      set(alone OFF)
    endif()
    foreach(part RANGE 1 ${parts})
      math(EXPR index "${part} - 1")
      add_test(NAME gpu.${name}.${part} COMMAND ${name} --gtest_filter=${ARG_GPU})
      set_tests_properties(gpu.${name}.${part} PROPERTIES
        ENVIRONMENT "ATTN_TEST_DEVICE=cuda;ATTN_TEST_ALL=1;GTEST_TOTAL_SHARDS=${parts};GTEST_SHARD_INDEX=${index}"
        LABELS gpu SKIP_RETURN_CODE 77 TIMEOUT 600 RUN_SERIAL ${alone} COST ${parts})
    endforeach()
  endif()
endfunction()

# attn_add_program(NAME SOURCE LIBRARIES...): adds a program whose own source is bookkeeping.
function(attn_add_program name source)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE ${ARGN} attn_cold)
  target_compile_options(${name} PRIVATE -fPIC)  # the precompiled headers were compiled with -fPIC
  target_precompile_headers(${name} REUSE_FROM attn_slow_headers_cold)
endfunction()

# attn_add_bench(NAME SOURCE LIBRARY): adds a Google Benchmark of the library, and a test that runs it and does not
# judge its times. The benchmark may use the CPU device, so a build without this device does not have the test.
function(attn_add_bench name source library)
  if(NOT ATTN_BENCH)
    return()
  endif()
  add_executable(${name} ${PROJECT_SOURCE_DIR}/${source})
  target_link_libraries(${name} PRIVATE ${library} benchmark::benchmark_main)
  if(ATTN_TESTS AND ATTN_HAS_CPU)
    add_test(NAME ${name} COMMAND ${name} --benchmark_min_time=0.001)
    set_tests_properties(${name} PROPERTIES LABELS cpu FAIL_REGULAR_EXPRESSION "ERROR OCCURRED" TIMEOUT 600)
  endif()
endfunction()

# attn_add_script_test(NAME SCRIPT [ARGUMENTS...]): adds a script as a test. The script exits with 77 where it cannot
# run.
function(attn_add_script_test name script)
  add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/${script} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS cpu COST 1 SKIP_RETURN_CODE 77 TIMEOUT 600)
endfunction()

# attn_add_experiment(FOLDER [KNOWS LIBRARIES...] [GPU FILTER] [GPU_PARTS N] [LONG FILTERS...] [SOME FILTERS...]):
# adds the experiment in FOLDER. All sources of FOLDER except main.cpp make a library, which tests use too. main.cpp
# makes the executable.
function(attn_add_experiment folder)
  cmake_parse_arguments(ARG "" "GPU;GPU_PARTS" "KNOWS;LONG;SOME" ${ARGN})
  attn_add_library(${folder}_parts ${folder} COLD KNOWS common_experiment ${ARG_KNOWS})
  attn_add_program(${folder} ${PROJECT_SOURCE_DIR}/${folder}/main.cpp ${folder}_parts)
  set_property(GLOBAL APPEND PROPERTY ATTN_EXPERIMENTS ${folder})
  attn_add_tests(${folder}_parts ${folder} PROGRAMS ${folder} GPU "${ARG_GPU}" GPU_PARTS "${ARG_GPU_PARTS}"
                 LONG ${ARG_LONG} SOME ${ARG_SOME})
endfunction()

# attn_add_all_experiments(NAMES...): adds for each NAME the program NAME_experiments, which has all experiments and the
# devices of the object library attn_NAME. Each experiment's main.cpp is compiled once, for its own program; here its
# function main has the name FOLDER_main.
function(attn_add_all_experiments)
  get_property(experiments GLOBAL PROPERTY ATTN_EXPERIMENTS)
  set(objcopy ${CMAKE_OBJCOPY})
  set(prefix "")
  if(APPLE)  # which has no objcopy; names in its files of code begin with an underscore
    set(objcopy ${ATTN_LLVM_TOOLS}/llvm-objcopy)
    set(prefix _)
  endif()
  set(names "")
  foreach(experiment IN LISTS experiments)
    set(object ${PROJECT_BINARY_DIR}/renamed/${experiment}${CMAKE_CXX_OUTPUT_EXTENSION})
    add_custom_command(OUTPUT ${object} DEPENDS $<TARGET_OBJECTS:${experiment}> VERBATIM COMMAND
                       ${objcopy} --redefine-sym ${prefix}main=${prefix}${experiment}_main $<TARGET_OBJECTS:${experiment}>
                       ${object})
    list(APPEND objects ${object})
    list(APPEND libraries ${experiment}_parts)
    string(APPEND names "EXPERIMENT(${experiment}) ")
  endforeach()
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/renamed)
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/common/testing/experiments.cpp PROPERTIES
                              COMPILE_DEFINITIONS "ATTN_EXPERIMENTS=${names}")
  foreach(name IN LISTS ARGN)
    attn_add_program(${name}_experiments common/testing/experiments.cpp attn_${name} ${libraries})
    target_sources(${name}_experiments PRIVATE ${objects})
  endforeach()
endfunction()
