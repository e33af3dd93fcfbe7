// Mutants breaks the code on purpose, one small change at a time, and says which changes the tests notice.
//
//	go run ./internal/mutants ./memcache ./transfer
//
// The changes of a package stand in its testdata/mutants.txt, which is read as follows.
//
//	# A comment, between mutants.
//	mutant: a free neighbour is not merged
//	file: free.go
//	run: TestMerge
//	--- old
//		b = b.mergeNext()
//	--- new
//	--- end
//
// A file is relative to the package's folder, and the old text must stand in it once. "run" is go test's -run; "killer: race" means that the race
// detector notices, where tests alone need not; "test: ./tensor" names another package whose tests notice; "tags" are build
// tags; "survives: <reason>" is for what no test can see. The tree is not touched: the changed file is laid over it (go test -overlay).
//
// The exit status is 1 if a mutant survives that should not, dies that should survive, or can't be tried, and when one is no program; without packages all lists
// of the module are run.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	name := flag.String("run", "", "only mutants whose name matches this `regexp`")
	workers := flag.Int("j", runtime.NumCPU(), "mutants at a time")
	timeout := flag.Duration("timeout", time.Minute, "for the tests of one mutant; one that hangs is killed by it")
	sample := flag.Int("sample", 0, "try so many of the mutants, drawn at random; 0: all")
	seed := flag.String("seed", "", "what the sample is drawn with, such as the name of a commit")
	check := flag.Bool("check", false, "only say which mutants are no programs: none is tried")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	mutants, root, err := read(ctx, flag.Args(), *name)
	if err == nil {
		mutants = draw(mutants, *sample, *seed)
		err = compile(ctx, root, mutants)
	}
	if err == nil && !*check {
		err = run(ctx, root, mutants, max(1, *workers), *timeout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// read gives the mutants of the packages' lists whose name matches, and the module's root.
func read(ctx context.Context, packages []string, name string) (mutants []*mutant, root string, err error) {
	only, err := regexp.Compile(name)
	if err != nil {
		return nil, "", fmt.Errorf("mutants: -run: %w", err)
	}
	if root, err = moduleRoot(ctx); err != nil {
		return nil, "", err
	}
	if len(packages) == 0 {
		if packages, err = packagesWithLists(root); err != nil {
			return nil, "", err
		}
	}
	for _, pkg := range packages {
		list, err := readList(root, "./"+filepath.ToSlash(filepath.Clean(pkg)))
		if err != nil {
			return nil, "", err
		}
		mutants = append(mutants, slices.DeleteFunc(list, func(m *mutant) bool { return !only.MatchString(m.name) })...)
	}
	if len(mutants) == 0 {
		return nil, "", errors.New("mutants: none to try")
	}
	return mutants, root, nil
}

// draw gives n of the mutants, or all, in their order. The same seed draws the same of the same lists.
func draw(mutants []*mutant, n int, seed string) []*mutant {
	if n <= 0 || n >= len(mutants) {
		return mutants
	}
	places := rand.New(rand.NewChaCha8(sha256.Sum256([]byte(seed)))).Perm(len(mutants))[:n]
	slices.Sort(places)
	drawn := make([]*mutant, n)
	for i, place := range places {
		drawn[i] = mutants[place]
	}
	fmt.Printf("%d of %d mutants, drawn with seed %q\n", n, len(mutants), seed)
	return drawn
}

func run(ctx context.Context, root string, mutants []*mutant, workers int, timeout time.Duration) error {
	if err := clean(ctx, root, mutants); err != nil {
		return err
	}
	return report(tryAll(ctx, root, mutants, workers, timeout))
}

// moduleRoot is the folder of go.mod.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("mutants: go env GOMOD: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

func packagesWithLists(root string) ([]string, error) {
	var packages []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if dir, file := filepath.Split(path); err == nil && file == "mutants.txt" && filepath.Base(dir) == "testdata" {
			pkg, err := filepath.Rel(root, filepath.Dir(filepath.Clean(dir)))
			packages = append(packages, pkg)
			return err
		}
		return err
	})
	return packages, err
}

// clean runs the packages' tests on the tree as it is: where they fail, mutants say nothing.
func clean(ctx context.Context, root string, mutants []*mutant) error {
	done := map[mutant]bool{}
	for _, m := range mutants {
		whole := mutant{test: m.test, race: m.race, tags: m.tags}
		if done[whole] {
			continue
		}
		done[whole] = true
		if out, err := goTest(ctx, root, 10*time.Minute, &whole); err != nil {
			return fmt.Errorf("mutants: the tests of %s fail without a mutant: %w\n%s", m.test, err, out)
		}
	}
	return nil
}

// tryAll tries the mutants on several goroutines, prints each as it ends, and gives all verdicts in the order of the lists.
func tryAll(ctx context.Context, root string, mutants []*mutant, workers int, timeout time.Duration) []verdict {
	verdicts := make([]verdict, len(mutants))
	next := make(chan int)
	var group sync.WaitGroup
	var printing sync.Mutex
	for range workers {
		group.Go(func() {
			for i := range next {
				v := mutants[i].try(ctx, root, timeout)
				verdicts[i] = v
				printing.Lock()
				fmt.Printf("%-9s %5.1fs  %-12s %s%s\n", v.word(), v.took.Seconds(), v.mutant.pkg[2:], v.mutant.name, v.because())
				printing.Unlock()
			}
		})
	}
	for i := range mutants {
		next <- i
	}
	close(next)
	group.Wait()
	return verdicts
}

func (v *verdict) word() string {
	switch {
	case v.err != nil:
		return "ERROR"
	case v.killed && v.mutant.survives != "":
		return "KILLED"
	case v.killed:
		return "killed"
	case v.mutant.survives != "":
		return "survives"
	}
	return "SURVIVES"
}

func (v *verdict) because() string {
	switch {
	case v.err != nil:
		return ": " + v.err.Error()
	case v.killed && v.mutant.survives != "":
		return ": by " + v.by + ", though the list says that it survives"
	case v.killed:
		return ": " + v.by
	case v.mutant.survives != "":
		return ": " + v.mutant.survives
	}
	return ""
}

// report prints the count of each package, and is an error if a mutant did not end as its list says.
func report(verdicts []verdict) error {
	type count struct{ killed, survive, wrong int }
	counts := map[string]*count{}
	var packages []string
	wrong := 0
	for _, v := range verdicts {
		c := counts[v.mutant.pkg]
		if c == nil {
			c = &count{}
			counts[v.mutant.pkg], packages = c, append(packages, v.mutant.pkg)
		}
		switch v.word() {
		case "killed":
			c.killed++
		case "survives":
			c.survive++
		default:
			c.wrong++
			wrong++
		}
	}
	fmt.Println()
	for _, pkg := range packages {
		c := counts[pkg]
		fmt.Printf("%-20s %3d killed, %d survive for a reason, %d not as their list says\n", pkg[2:], c.killed, c.survive, c.wrong)
	}
	if wrong > 0 {
		return fmt.Errorf("mutants: %d of %d did not end as their list says", wrong, len(verdicts))
	}
	return nil
}
