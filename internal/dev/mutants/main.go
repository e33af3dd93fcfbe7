// Mutants breaks the code on purpose, one small change at a time, and reports which changes the
// tests notice.
//
//	go run ./internal/dev/mutants ./memcache ./transfer
//
// The changes of a package are listed in its testdata/mutants.txt:
//
//	# A comment.
//	mutant: a free front is lost when the mapping fails
//	func: grower.growExpandable
//	run: TestGrowsFrom
//	at: if !m.Unmapped() {
//	drop
//
// "func" is the function, or Type.method, that is changed; "in: internal/placement" looks for it
// in a folder below the package's. "at" is text that its body contains once, without
// indentation: a part of a line, a line, or two lines with an "at" each. Then follows what is
// done: "drop" deletes the statement that begins on that line, "instead: TEXT" replaces it, and
// "to: TEXT" replaces the text after "at" alone; a longer text has several such lines. A mutant
// may have several edits of one function. Where the function was renamed or the text moved, the
// only function that has the text is taken, so that a refactoring edits no list.
//
// "run" is go test's -run; "killer: race" means that the race detector notices, where tests
// alone need not; "test: ./tensor" names another package whose tests notice; "tags" are build
// tags. The tree is not touched: the changed file is laid over it (go test -overlay).
//
// The exit status is 1 if a mutant survives, is stale, or does not compile. Without packages all
// lists of the module are tried.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
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
	timeout := flag.Duration("timeout", 30*time.Second, "for the tests of one mutant; one that hangs is killed by it")
	sample := flag.Int("sample", 0, "try so many of the mutants, drawn at random; 0: all")
	seed := flag.String("seed", "", "what the sample is drawn with, such as the name of a commit")
	check := flag.Bool("check", false, "try none; fail if a mutant is stale or does not compile")
	stale := flag.Bool("stale", false, "try none; warn of mutants that no longer fit the code")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	mutants, root, err := read(ctx, flag.Args(), *name)
	switch {
	case err != nil:
	case *stale:
		warn(os.Stderr, fit(root, mutants))
	case *check:
		err = errors.Join(fit(root, mutants), compile(ctx, root, mutants))
	default:
		mutants = draw(mutants, *sample, *seed)
		if err = errors.Join(fit(root, mutants), compile(ctx, root, mutants)); err == nil {
			err = run(ctx, root, mutants, max(1, *workers), *timeout)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// fit returns an error for each stale mutant: its text is not in the code, or no test could notice
// it.
func fit(root string, mutants []*mutant) error {
	known := testNames{}
	var errs []error
	for _, m := range mutants {
		_, err := m.apply(root)
		errs = append(errs, err, known.find(root, m))
	}
	return errors.Join(errs...)
}

// warn prints stale mutants as warnings.
func warn(w io.Writer, stale error) {
	if stale != nil {
		fmt.Fprintf(w, "warning: stale mutants, which make nightly refuses:\n%v\n", stale)
	}
}

// read returns the mutants of the packages' lists whose name matches, and the module's root.
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

// draw returns n of the mutants, or all, in their order. The same seed draws the same mutants of
// the same lists.
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

// moduleRoot returns the folder of go.mod.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("mutants: go env GOMOD: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// packagesWithLists returns the packages of the module that have lists. Folders of other modules
// are left out, such as dist, which make bundle writes.
func packagesWithLists(root string) ([]string, error) {
	var packages []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != root {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
				return filepath.SkipDir
			}
		}
		if dir, file := filepath.Split(path); err == nil && file == "mutants.txt" && filepath.Base(dir) == "testdata" {
			pkg, err := filepath.Rel(root, filepath.Dir(filepath.Clean(dir)))
			packages = append(packages, pkg)
			return err
		}
		return err
	})
	return packages, err
}

// clean runs the tests that should notice mutants on the unchanged tree: if they fail, mutants
// prove nothing.
func clean(ctx context.Context, root string, mutants []*mutant) error {
	runs := map[suite][]string{}
	var order []suite
	for _, m := range mutants {
		s := suite{m.test, m.tags, m.race}
		if runs[s] == nil {
			order = append(order, s)
		}
		if run := cmp.Or(m.run, "."); !slices.Contains(runs[s], run) {
			runs[s] = append(runs[s], run)
		}
	}
	for _, s := range order {
		m := mutant{test: s.pkg, tags: s.tags, race: s.race, run: strings.Join(runs[s], "|")}
		if out, err := goTest(ctx, root, 10*time.Minute, &m); err != nil {
			return fmt.Errorf("mutants: the tests of %s fail without a mutant: %w\n%s", m.test, err, out)
		}
	}
	return nil
}

// tryAll tries the mutants on several goroutines, prints each as it ends, and returns all verdicts
// in the order of the lists.
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
	case v.killed:
		return "killed"
	}
	return "SURVIVES"
}

func (v *verdict) because() string {
	switch {
	case v.err != nil:
		return ": " + v.err.Error()
	case v.killed:
		return ": " + v.by
	}
	return ""
}

// report prints the count of each package, and returns an error unless every mutant was killed.
func report(verdicts []verdict) error {
	type count struct{ killed, all int }
	counts := map[string]*count{}
	var packages []string
	left := 0
	for _, v := range verdicts {
		c := counts[v.mutant.pkg]
		if c == nil {
			c = &count{}
			counts[v.mutant.pkg], packages = c, append(packages, v.mutant.pkg)
		}
		c.all++
		if v.word() == "killed" {
			c.killed++
		} else {
			left++
		}
	}
	fmt.Println()
	for _, pkg := range packages {
		fmt.Printf("%-24s %3d of %3d killed\n", pkg[2:], counts[pkg].killed, counts[pkg].all)
	}
	if left > 0 {
		return fmt.Errorf("mutants: %d of %d were not killed", left, len(verdicts))
	}
	return nil
}
