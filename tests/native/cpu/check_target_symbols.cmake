# A target's object file may define nothing but its table: a function that other object files define too
# (an inline one of the standard library, say) could be taken from here for everybody, and crash on CPUs
# that lack the target's instructions.
#   cmake -DNM=nm -DLIBRARY=libpybatcher_core.a -P check_target_symbols.cmake
execute_process(COMMAND ${NM} --defined-only ${LIBRARY} OUTPUT_VARIABLE symbols
                RESULT_VARIABLE status ERROR_QUIET)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "nm ${LIBRARY} failed: ${status}")
endif()
string(REPLACE "\n" ";" lines "${symbols}")
set(member "")
set(tables 0)
foreach(line IN LISTS lines)
  if(line MATCHES "^(.*)\\.o:$")
    set(member "${CMAKE_MATCH_1}")
  elseif(member MATCHES "^target_" AND line MATCHES " ([A-Zuvw]) (.*)$")
    set(kind "${CMAKE_MATCH_1}")
    set(symbol "${CMAKE_MATCH_2}")
    if(symbol MATCHES "kKernelsE$")
      math(EXPR tables "${tables} + 1")
    else()
      message(SEND_ERROR "${member} defines ${symbol} (${kind}) for others to link")
    endif()
  endif()
endforeach()
if(tables EQUAL 0)
  message(FATAL_ERROR "no target object with a kernel table in ${LIBRARY}")
endif()
