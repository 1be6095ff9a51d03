# What `cmake --install` lays down: the library, the public headers, the command, and how CMake and pkg-config find them.
# Needs the rowjit target and its dependencies to be known; included last.
include(CMakePackageConfigHelpers)

install(TARGETS rowjit EXPORT rowjitTargets ARCHIVE DESTINATION lib)
# By itself, so that a program which uses only the C interface needs nothing that the static library links.
install(TARGETS rowjit_c EXPORT rowjitCTargets LIBRARY DESTINATION lib)
install(DIRECTORY include/rowjit TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
install(PROGRAMS ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/rowjit TYPE BIN OPTIONAL)
install(FILES LICENSE TYPE DOC)

install(EXPORT rowjitTargets NAMESPACE rowjit:: DESTINATION lib/cmake/rowjit)
install(EXPORT rowjitCTargets NAMESPACE rowjit:: DESTINATION lib/cmake/rowjit)
configure_package_config_file(cmake/rowjitConfig.cmake.in rowjitConfig.cmake INSTALL_DESTINATION lib/cmake/rowjit)
write_basic_package_version_file(rowjitConfigVersion.cmake COMPATIBILITY SameMinorVersion)

if(ROWJIT_STATIC_RUNTIME)
  set(ROWJIT_PC_REQUIRES "")
  set(ROWJIT_PC_LIBS ${ROWJIT_LIBMD})
else()
  set(ROWJIT_PC_REQUIRES "fmt spdlog")
  set(ROWJIT_PC_LIBS -lmd)
endif()
if(ROWJIT_LLVM AND LLVM_FOUND)
  string(APPEND ROWJIT_PC_LIBS " -L${LLVM_LIBRARY_DIRS} -lLLVM-${LLVM_VERSION_MAJOR}")
endif()
configure_file(cmake/rowjit.pc.in rowjit.pc @ONLY)
configure_file(cmake/rowjit_c.pc.in rowjit_c.pc @ONLY)

install(FILES ${CMAKE_BINARY_DIR}/rowjitConfig.cmake ${CMAKE_BINARY_DIR}/rowjitConfigVersion.cmake
        DESTINATION lib/cmake/rowjit)
install(FILES ${CMAKE_BINARY_DIR}/rowjit.pc ${CMAKE_BINARY_DIR}/rowjit_c.pc DESTINATION lib/pkgconfig)
