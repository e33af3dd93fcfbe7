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
// peak, by category and module, differ from those in the file. file is relative to the package's
// folder. Bytes are requested bytes, because the sizes of blocks depend on which free block served
// a request. More and less memory both fail, so that the file stays correct. The failure lists the
// differences, and the lines in the modules that grew. The test continues.
//
// With -memtest.update, or a flag -update of the package's tests, Golden instead writes the file,
// and its folder if necessary, unless the test has failed.
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
		t.Errorf("memtest: the peak is %s, %d bytes: %+d from %s\n%sif this is intended: %s", sizes.Format(is), is, is-was, file, d, command)
	}
}

// updateFlag returns the name of the flag that writes golden files, and whether it is set.
func updateFlag() (name string, set bool) {
	if f := flag.Lookup("update"); f != nil {
		return "update", *update || f.Value.String() == "true"
	}
	return "memtest.update", *update
}

// pattern returns the value of -run that selects one test.
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

// difference lists the owners that hold a different amount now, with the lines of those that hold
// more; "" if there are none.
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
