# Puts NVRTC where a program in bin/ looks for it first, ../lib, when cmake/fetch_nvrtc.sh has brought it. Nothing is linked.
set(ROWJIT_NVRTC_DIR ${CMAKE_SOURCE_DIR}/build/deps/nvrtc CACHE PATH "Folder of libnvrtc.so.13 and its builtins")
file(GLOB nvrtc_libraries ${ROWJIT_NVRTC_DIR}/libnvrtc*.so.*)
foreach(library IN LISTS nvrtc_libraries)
  get_filename_component(name ${library} NAME)
  file(MAKE_DIRECTORY ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
  file(CREATE_LINK ${library} ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/${name} SYMBOLIC)
endforeach()
