// Command memreplay replays recordings of PyTorch's caching allocator, or of programs that use memcache, on memcache
// without a GPU.
//
//	memreplay FILE...                       verify that memcache does what the recorded allocator did
//	memreplay -whatif FILE...               try options that are worth it, and say which serves best
//	memreplay -config OPTIONS FILE...       ask what other options would have cost
//
// Files are snapshots of torch.cuda.memory._dump_snapshot (pickles or JSON), JSON lines of the same
// entries, or recordings of package trace/record, plain or compressed with gzip or zstd. A history may
// begin at any moment: the state at its first entry is reconstructed from the final segments.
//
// Verifying compares every address, every driver call in order, the statistics if the file has them,
// and the final blocks. PyTorch does not record calls of record_stream and empty_cache, memory limits,
// or the pools of requests. They are inferred, and the assumptions are printed as notes.
// One of trace/record leaves nothing out. If calls of several goroutines overlapped in it, or it begins with memory in use,
// its calls may have no order in which they could be made again: then its books are checked, and a note says why.
//
// OPTIONS is the value of PYTORCH_CUDA_ALLOC_CONF to try, such as "expandable_segments:True"; "" is PyTorch's
// default, and "recorded" what the file was recorded with. The flag can be given several times. A recorded memory limit
// holds unless the options have one; "per_process_memory_fraction:1.0" lifts it. Names that PyTorch does not have are
// memcache's own:
//
//	expandable_granule_mb:2   expandable segments of the large pool grow in granules of 2 MiB in place of 20
//	expandable_remap:True     memory of free granules moves to where it is needed; with expandable_segments:True
//	memory_limit:BYTES        a memory limit
//	no_caching:True           a driver call for every allocation and every free
//	exact:False               with memcache's improvements, as in a program that leaves Config.Exact unset; against a recording
//	                          of trace/record options are tried as it was, exact or not, unless they say, and the table says which
//
// On systems of 32 bits the reader of pickles has no numbers beyond 31 bits, and a snapshot of a GPU has them.
//
// The exit status is 0, 1 if a verification or a file failed, and 2 if the command line is wrong.
package main

import (
	"io"
	"os"

	"github.com/cistern-ml/cistern/internal/recording"
)

func main() {
	recording.CollectEagerly()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// run is main with its surroundings.
func run(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if err != nil {
		return exitUsage
	}
	if o == nil {
		return exitOK // help
	}
	if len(o.configs) > 0 || o.suggest {
		return o.whatIf(stdout, stderr)
	}
	return o.verify(stdout, stderr)
}
