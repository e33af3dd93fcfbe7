package memtest

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cistern-ml/cistern/internal/output"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache"
)

var update = flag.Bool("memtest.update", false, "memtest.Golden writes its files")

// Golden runs f, and fails the test if the holders of the cache's memory at the first moment of its
// peak, by category and module, are not those of the file, which is relative to the package's
// folder. Bytes are those that were requested: those of blocks depend on which free block served a
// request. More and less are failures, so that the file stays true. The failure lists the
// differences, and the lines in the modules that grew. The test goes on.
//
// With -memtest.update, or a flag -update of the package's tests, Golden writes the file and its
// folder instead, unless the test has failed.
func Golden(t testing.TB, cache *memcache.Cache, file string, f func()) {
	t.Helper()
	peak := peakOf(t, cache, f).Holdings
	for i := range peak {
		peak[i].Bytes = peak[i].Requested
	}
	now := sum(peak, ownerOf)
	name, updates := updateFlag()
	if updates {
		if !t.Failed() {
			write(t, file, format(now))
		}
		return
	}
	command := fmt.Sprintf("go test -run '%s' -%s", pattern(t.Name()), name)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		t.Errorf("memtest: there is no %s yet: %s writes it", file, command)
		return
	}
	var before map[owner]amount
	if err == nil {
		before, err = parse(string(text))
	}
	if err != nil {
		t.Errorf("memtest: %s: %v: %s writes it again", file, err, command)
		return
	}
	if d := difference(before, now, peak); d != "" {
		was, is := total(before).bytes, total(now).bytes
		t.Errorf("memtest: the peak is %s, %d bytes: %+d from %s\n%sif it is meant: %s", sizes.Format(is), is, is-was, file, d, command)
	}
}

// updateFlag is the flag by which golden files are written, and whether it is set.
func updateFlag() (name string, set bool) {
	if f := flag.Lookup("update"); f != nil {
		return "update", *update || f.Value.String() == "true"
	}
	return "memtest.update", *update
}

// pattern is the value of -run for a test alone.
func pattern(test string) string {
	var parts []string
	for part := range strings.SplitSeq(test, "/") {
		parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
	}
	return strings.Join(parts, "/")
}

func write(t testing.TB, file, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = output.Write(file, func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return err
		})
	}
	if err != nil {
		t.Errorf("memtest: %v", err)
	}
}

// difference lists the owners that hold something else now, with the lines of those that hold more,
// or is "".
func difference(before, now map[owner]amount, holdings []memcache.Holding) string {
	changes := make(map[owner]amount)
	for o, a := range before {
		changes[o] = amount{-a.bytes, -a.blocks}
	}
	for o, a := range now {
		c := changes[o]
		changes[o] = amount{c.bytes + a.bytes, c.blocks + a.blocks}
	}
	for o, c := range changes {
		if c == (amount{}) {
			delete(changes, o)
		}
	}
	if len(changes) == 0 {
		return ""
	}
	var text strings.Builder
	table(&text, "before\tnow\tdifference\tblocks\t  "+columns.String(), changes, owner.compare, func(o owner, c amount) string {
		return fmt.Sprintf("%d\t%d\t%+d\t%+d\t  %v", before[o].bytes, now[o].bytes, c.bytes, c.blocks, o)
	})
	var grew []memcache.Holding
	for _, h := range holdings {
		if c := changes[ownerOf(h)]; c.bytes > 0 || c.blocks > 0 {
			grew = append(grew, h)
		}
	}
	if grew != nil {
		text.WriteString("lines in the modules that grew:\n")
		lines(&text, grew)
	}
	return text.String()
}
