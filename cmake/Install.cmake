# `cmake --install BUILD --component attn` installs libattn, attn.h, the sources of the kernels (libattn compiles them at
# run time), the files of tuning, the licence, and the files by which CMake and pkg-config find libattn. The installed files may be moved
# together.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The folder of the kernels, relative to the library's folder.
file(RELATIVE_PATH ATTN_INSTALLED_SOURCES ${CMAKE_INSTALL_FULL_LIBDIR} ${CMAKE_INSTALL_FULL_DATADIR}/attn)

function(attn_install)
  set_target_properties(attn PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)  # LLVM's libraries have a folder of their own
  install(TARGETS attn EXPORT attn LIBRARY COMPONENT attn NAMELINK_COMPONENT attn
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/common/api/attn.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/attn COMPONENT attn)

  get_target_property(folders common_api ATTN_FOLDERS)
  list(TRANSFORM folders APPEND /kernels)
  file(GLOB device_folders RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/common/backends/*/kernels)
  foreach(folder common/kernel ${folders} ${device_folders} common/backends/metal/emulator/stdlib findings/tuning)
    if(EXISTS ${PROJECT_SOURCE_DIR}/${folder})
      install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}/ DESTINATION ${CMAKE_INSTALL_DATADIR}/attn/${folder}
              COMPONENT attn PATTERN *.md EXCLUDE)
    endif()
  endforeach()
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE ${PROJECT_SOURCE_DIR}/VERSION
          DESTINATION ${CMAKE_INSTALL_DATADIR}/attn COMPONENT attn)

  set(cmake_files ${CMAKE_INSTALL_LIBDIR}/cmake/attn)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/attnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/attnConfigVersion.cmake DESTINATION ${cmake_files} COMPONENT attn)
  install(EXPORT attn NAMESPACE attn:: FILE attnConfig.cmake DESTINATION ${cmake_files} COMPONENT attn)

  set(pkgconfig ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
  file(RELATIVE_PATH prefix ${pkgconfig} ${CMAKE_INSTALL_PREFIX})
  string(REGEX REPLACE "/$" "" prefix ${prefix})
  file(RELATIVE_PATH includes ${pkgconfig} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/attn.pc.in ${PROJECT_BINARY_DIR}/attn.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/attn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT attn)

  if(TARGET attn_torch)
    install(TARGETS attn_torch LIBRARY COMPONENT attn_torch)
  endif()
endfunction()
