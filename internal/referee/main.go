// Referee plays the same calls on the version before and on this one, and says where the two first differ.
//
//	go run ./internal/referee -before before-cores -calls 10000000
//
// It is for changes that rebuild memcache or transfer and must not be seen from outside. The calls are random, of one goroutine, under
// all option sets, with faults of the driver; the player (internal/referee/player) prints what each did. The version before is
// any commit or tag of the repository; it is built with the player of this one, which must keep to what both versions have.
// Where a change is meant to be seen without Exact alone, -parts memcache-exact plays the rest; where it is meant to be seen, compare
// what lies before it and what lies behind it: -now takes another version than the working tree.
//
// The exit status is 1 if they differ.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
)

func main() {
	before := flag.String("before", "", "the `commit` or tag to compare with")
	now := flag.String("now", "", "the `commit` or tag that is compared with it; without it, the working tree")
	calls := flag.Int64("calls", 1_000_000, "calls of each part, over all option sets")
	seed := flag.Uint64("seed", 1, "of the random calls")
	parts := flag.String("parts", "memcache,transfer", "what is compared; memcache-exact is memcache with Exact in all option sets")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := referee(ctx, [2]string{*before, *now}, strings.Split(*parts, ","), *calls, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "referee:", err)
		os.Exit(1)
	}
}

func referee(ctx context.Context, versions [2]string, parts []string, calls int64, seed uint64) error {
	if versions[0] == "" {
		return errors.New("-before names no commit")
	}
	dir, err := os.MkdirTemp("", "referee")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	players := [2]string{filepath.Join(dir, "before.exe"), filepath.Join(dir, "now.exe")}
	if err := build(ctx, dir, versions, players); err != nil {
		return err
	}
	for _, part := range parts {
		args := []string{"-part", part, "-calls", strconv.FormatInt(calls, 10), "-seed", strconv.FormatUint(seed, 10)}
		made, err := compare(exec.CommandContext(ctx, players[0], args...), exec.CommandContext(ctx, players[1], args...))
		if err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
		fmt.Printf("%s: the same in %s and in %s: %d calls\n", part, versions[0], named(versions[1]), made)
	}
	return nil
}
