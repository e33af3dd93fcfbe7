//go:build cuda

package cuda

// #cgo CFLAGS: -I/usr/local/cuda/include
// #cgo LDFLAGS: -L${SRCDIR}/link -Wl,--as-needed -ldl
//
// #cgo noescape cistern_init
// #cgo noescape cistern_alloc
// #cgo noescape cistern_event_elapsed
// #cgo noescape cistern_launch
// #cgo noescape cistern_batch
// #cgo noescape cistern_copy_ranges
// #cgo noescape cistern_copy_2d
// #cgo noescape cistern_gemm
// #cgo noescape cistern_lt_make
// #cgo noescape cistern_lt_run
// #cgo noescape cistern_nccl_run
// #cgo noescape cistern_capture_end
// #cgo noescape cistern_graph_instantiate
// #cgo noescape cistern_graph_update
// #cgo nocallback cistern_launch
// #cgo nocallback cistern_event_record
// #cgo nocallback cistern_event_query
// #cgo nocallback cistern_stream_query
// #cgo nocallback cistern_stream_wait
// #cgo nocallback cistern_h2d
// #cgo nocallback cistern_d2h
// #cgo nocallback cistern_d2d
// #cgo nocallback cistern_batch
// #cgo nocallback cistern_copy_ranges
// #cgo nocallback cistern_copy_2d
// #cgo nocallback cistern_memset
// #cgo nocallback cistern_gemm
// #cgo nocallback cistern_lt_run
// #cgo nocallback cistern_graph_launch
// #cgo nocallback cistern_nccl_run
// #include "shim.h"
// #include "blas.h"
// #include "lt.h"
// #include "nccl.h"
import "C"

//go:generate go run symbols.go
