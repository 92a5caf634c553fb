# What the project's CMake files share: warnings and sanitizers, the LLVM that compiles CPU kernels, CUDA's headers, and
# one function per kind of target.

add_library(attn_flags INTERFACE)
target_compile_options(attn_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(attn_flags INTERFACE -Wno-restrict)  # false alarms of gcc 12 on string + string (PR 105651)
endif()
target_include_directories(attn_flags INTERFACE ${PROJECT_SOURCE_DIR})
if(ATTN_SANITIZE)
  target_compile_options(attn_flags INTERFACE -fsanitize=${ATTN_SANITIZE} -fno-omit-frame-pointer
                                              -fno-sanitize-recover=all
                                              -fno-sanitize=vptr)  # needs RTTI everywhere; LLVM has none
  target_link_options(attn_flags INTERFACE -fsanitize=${ATTN_SANITIZE})
endif()

# LLVM and clang as libraries, for the CPU device. The project is tested with 19; from 18 on any version that CMake finds
# is taken (-DLLVM_DIR=... names one). Sets ATTN_HAS_CPU; without LLVM the build goes on and leaves the CPU device out.
function(attn_find_llvm)
  foreach(prefix "" /usr/lib/llvm-19 /usr/lib/llvm-20 /usr/lib/llvm-21 /usr/lib/llvm-18)
    if(prefix)
      set(where PATHS ${prefix} NO_DEFAULT_PATH)
    elseif(NOT LLVM_DIR)
      continue()
    endif()
    find_package(LLVM CONFIG QUIET ${where})
    if(LLVM_FOUND AND LLVM_PACKAGE_VERSION VERSION_GREATER_EQUAL 18)
      find_package(Clang CONFIG QUIET PATHS ${LLVM_INSTALL_PREFIX} NO_DEFAULT_PATH)
      if(TARGET clang-cpp)
        message(STATUS "CPU device: clang/LLVM ${LLVM_PACKAGE_VERSION}")
        add_library(attn_llvm INTERFACE)
        target_include_directories(attn_llvm SYSTEM INTERFACE ${LLVM_INCLUDE_DIRS} ${CLANG_INCLUDE_DIRS})
        target_link_libraries(attn_llvm INTERFACE clang-cpp LLVM)
        set(ATTN_HAS_CPU ON PARENT_SCOPE)
        return()
      endif()
    endif()
    unset(LLVM_DIR CACHE)
    unset(Clang_DIR CACHE)
  endforeach()
  message(STATUS "CPU device: left out (llvm-19-dev, libclang-19-dev, libclang-cpp19-dev and clang-19 would bring it)")
  set(ATTN_HAS_CPU OFF PARENT_SCOPE)
endfunction()

# The CUDA toolkit's headers, for the CUDA device (-DATTN_CUDA_INCLUDE=... names them); libraries are opened at run time.
# Sets ATTN_HAS_CUDA; without them the build goes on and leaves the CUDA device out.
function(attn_find_cuda)
  find_path(ATTN_CUDA_INCLUDE nvrtc.h HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include)
  if(ATTN_CUDA_INCLUDE AND EXISTS ${ATTN_CUDA_INCLUDE}/cuda.h)
    message(STATUS "CUDA device: headers in ${ATTN_CUDA_INCLUDE}")
    set(ATTN_HAS_CUDA ON PARENT_SCOPE)
  else()
    message(STATUS "CUDA device: left out (cuda.h and nvrtc.h of the CUDA toolkit would bring it)")
    set(ATTN_HAS_CUDA OFF PARENT_SCOPE)
  endif()
endfunction()

# attn_add_test(NAME SOURCES... LIBRARIES... LABEL cpu|gpu [ALONE]): one GoogleTest binary, its tests known to ctest. A test
# that skips itself is reported as skipped, not as passed. Of a binary that is ALONE one test runs at a time, and no other.
function(attn_add_test name)
  cmake_parse_arguments(ARG "ALONE" "LABEL" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT ATTN_TESTS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gtest_main attn_flags)
  target_compile_definitions(${name} PRIVATE ATTN_TEST_DATA="${CMAKE_CURRENT_SOURCE_DIR}"
                                             ATTN_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             ATTN_BINARY_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
                                             ATTN_SANITIZE="${ATTN_SANITIZE}")
  if(ARG_LABEL STREQUAL gpu)
    set(prefix TEST_PREFIX gpu.)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 ${prefix}
                       PROPERTIES LABELS ${ARG_LABEL} SKIP_REGULAR_EXPRESSION "SKIPPED" TIMEOUT 600
                                  RUN_SERIAL ${ARG_ALONE})
endfunction()

# attn_add_experiment(FOLDER): the experiment in FOLDER. All its sources but main.cpp make a library, so that tests and
# later experiments may use them; main.cpp makes the executable; tests/*_test.cpp are its tests.
function(attn_add_experiment folder)
  set(dir ${PROJECT_SOURCE_DIR}/${folder})
  file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.cpp)
  list(REMOVE_ITEM sources ${dir}/main.cpp)
  add_library(${folder}_problem STATIC ${sources})
  target_link_libraries(${folder}_problem PUBLIC common_experiment PRIVATE attn_flags)
  add_executable(${folder} ${dir}/main.cpp)
  target_link_libraries(${folder} PRIVATE ${folder}_problem attn_flags)
  file(GLOB tests CONFIGURE_DEPENDS ${dir}/tests/*_test.cpp)
  if(NOT ATTN_HAS_CUDA)
    list(FILTER tests EXCLUDE REGEX "/cuda_")
  endif()
  if(tests)
    attn_add_test(${folder}_test SOURCES ${tests} LIBRARIES ${folder}_problem fmt::fmt LABEL cpu)
    # The tests of the kernels once more, for a GPU.
    attn_add_test(${folder}_gpu_test SOURCES ${dir}/tests/problem_test.cpp LIBRARIES ${folder}_problem fmt::fmt LABEL gpu)
    if(ATTN_TESTS)
      target_compile_definitions(${folder}_test PRIVATE ATTN_TEST_DEVICE="cpu:threads=2")
      target_compile_definitions(${folder}_gpu_test PRIVATE ATTN_TEST_DEVICE="cuda")
      add_dependencies(${folder}_test ${folder})
      add_dependencies(${folder}_gpu_test ${folder})
    endif()
  endif()
endfunction()
