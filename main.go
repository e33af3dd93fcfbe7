// Command cistern works on recordings of device memory: snapshots of PyTorch's caching allocator,
// and recordings of programs that use memcache. No GPU is needed.
//
//	cistern verify FILE...                  compare every address and driver call with PyTorch's
//	cistern whatif FILE...                  what other allocator options would have cost
//	cistern report -o report.html FILE      a page of what the memory was used for
//	cistern ranks -o ranks.html FILE...     how the ranks of a training waited for each other
//	cistern diff BEFORE AFTER               which memory grew between two runs
//
// cistern COMMAND --help explains the flags. The exit status is 0, 1 if a verification found
// differences, and 2 if the command line is wrong or a file can't be read or written.
package main

import (
	"os"

	"github.com/cistern-ml/cistern/internal/cli"
)

func main() { os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
