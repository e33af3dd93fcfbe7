// Player makes random calls and prints what each did, for internal/referee: one line a call, and an indented one for each thing that
// the call did to the driver or told an observer. Two versions that do the same print the same.
//
// It is built against versions of before, too: it may use only what they have.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
)

// parts are what is played. Each makes as many calls, and prints.
var parts = map[string]func(w io.Writer, calls int64, seed uint64) error{
	"memcache":       playMemcache,
	"memcache-exact": playMemcacheExactly,
	"transfer":       playTransfer,
}

func main() {
	part := flag.String("part", "memcache", "what is played")
	calls := flag.Int64("calls", 10_000, "how many calls, over all option sets")
	seed := flag.Uint64("seed", 1, "of the random calls")
	flag.Parse()
	play := parts[*part]
	if play == nil {
		fmt.Fprintf(os.Stderr, "player: no part is called %q\n", *part)
		os.Exit(2)
	}
	out := bufio.NewWriterSize(os.Stdout, 1<<16)
	err := play(out, *calls, *seed)
	if err == nil {
		_, err = fmt.Fprintln(out, "the end")
	}
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "player:", err)
		os.Exit(1)
	}
}
