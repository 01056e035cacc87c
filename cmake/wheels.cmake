# Builds the extension for many Pythons in one build, from their headers only. PYBATCHER_EXTENSIONS is a
# list of NAME=FOLDER[,FOLDER...] with folders of headers. Each entry gets a target extension_NAME with the
# file NAME/_core.so; tools/wheels adds these to wheels. PYBATCHER_PYBIND11 is the folder of pybind11's
# headers. The core is compiled once.
file(GLOB PB_BINDINGS CONFIGURE_DEPENDS csrc/bindings/*.cc)
foreach(extension ${PYBATCHER_EXTENSIONS})
  string(REGEX MATCH "^([^=]+)=(.+)$" matched ${extension})
  if(NOT matched)
    message(FATAL_ERROR "PYBATCHER_EXTENSIONS has '${extension}'; it must be NAME=FOLDER[,FOLDER...]")
  endif()
  set(name ${CMAKE_MATCH_1})
  string(REPLACE "," ";" headers "${CMAKE_MATCH_2}")
  if(APPLE)  # zig's linker, up to 0.17, crashes on a bundle of this size
    add_library(extension_${name} SHARED ${PB_BINDINGS})
  else()
    add_library(extension_${name} MODULE ${PB_BINDINGS})
  endif()
  target_include_directories(extension_${name} SYSTEM PRIVATE ${headers} ${PYBATCHER_PYBIND11})
  if(name MATCHES "t$")  # the headers are those of the same Python with the GIL
    target_compile_definitions(extension_${name} PRIVATE Py_GIL_DISABLED=1)
  endif()
  target_link_libraries(extension_${name} PRIVATE pybatcher_core core_docs)
  target_compile_options(extension_${name} PRIVATE $<$<CONFIG:Release>:-O2>)
  target_precompile_headers(extension_${name} PRIVATE <pybind11/numpy.h> <pybind11/pybind11.h>
                            <pybind11/stl.h>)
  set_target_properties(extension_${name} PROPERTIES PREFIX "" SUFFIX .so OUTPUT_NAME _core
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/${name})
  if(APPLE)
    set_target_properties(extension_${name} PROPERTIES NO_SONAME ON)  # a soname would contain a path of the build
    target_link_options(extension_${name} PRIVATE -install_name @rpath/_core.so -s
                        -undefined dynamic_lookup)
  else()
    target_link_options(extension_${name} PRIVATE
                        -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cmake/extension.map -s)
  endif()
endforeach()
