// Operators measures how many wrong operators the tests of packages notice.
//
//	go run ./internal/dev/operators -n 200 -seed 1 ./memcache ./transfer
//
// It draws operators of a package with a seed, and writes the code so that an environment variable
// chooses which one is wrong: one build of the tests tries them all. A first run finds the
// operators that no test reaches. Those that are reached are wrong one after the other: a test that
// fails, a crash or a timeout kills them. What lives is printed, to be read: it is equivalent, or a
// test is missing. With -statements it leaves statements out: calls, assignments, and conditions
// that return.
//
// The two halves run apart, too: -build DIR leaves the tests there, and -try DIR runs them from the
// folder of the same sources, on a machine with more processors and without Go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
)

func main() {
	var draw draw
	flag.IntVar(&draw.n, "n", 200, "operators to draw in each package")
	flag.StringVar(&draw.seed, "seed", "1", "what they are drawn with")
	flag.BoolVar(&draw.statements, "statements", false, "draw statements, and leave each out, in place of operators")
	build := flag.String("build", "", "only build the tests, into this `folder`")
	try := flag.String("try", "", "only try the tests in this `folder`")
	workers := flag.Int("j", runtime.NumCPU(), "operators at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := measure(ctx, flag.Args(), draw, *build, *try, max(1, *workers)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// measure builds the tests and tries the operators, or only one of the two.
func measure(ctx context.Context, packages []string, draw draw, build, try string, workers int) error {
	dir := build + try
	switch {
	case build != "" && try != "":
		return errors.New("operators: -build and -try are the two halves: one of them")
	case (try == "") == (len(packages) == 0):
		return errors.New("operators: packages to build, such as ./memcache, or -try and a folder")
	case dir == "":
		temp, err := os.MkdirTemp("", "operators")
		if err != nil {
			return fmt.Errorf("operators: %w", err)
		}
		defer os.RemoveAll(temp)
		dir = temp
	}
	if try == "" {
		if err := buildAll(ctx, dir, packages, draw); err != nil {
			return err
		}
	}
	if build != "" {
		return nil
	}
	return tryAll(ctx, dir, workers)
}
