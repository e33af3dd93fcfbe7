package profiledir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Files are the names of the files in the folder, as patterns of path.Match.
var Files = []string{"heap.pb.gz", "peak.pb.gz", "snapshot.pickle", "report.html", "recording.jsonl.gz", "trace.json", "step-*.pb.gz",
	"oom/heap.pb.gz", "oom/peak.pb.gz", "oom/snapshot.pickle", "oom/report.html"}

// stepFile matches the names of steps more closely than the pattern in Files.
var stepFile = regexp.MustCompile(`^step-\d+\.pb\.gz$`)

// removeEarlier removes the files of an earlier training, so that all files of these names are of
// one training.
func removeEarlier(dir string) error {
	var errs []error
	for _, pattern := range Files {
		names, _ := fs.Glob(os.DirFS(dir), pattern)
		for _, name := range names {
			if !strings.Contains(pattern, "*") || stepFile.MatchString(name) {
				errs = append(errs, os.Remove(filepath.Join(dir, name)))
			}
			if sub := filepath.Dir(name); sub != "." {
				_ = os.Remove(filepath.Join(dir, sub)) // if it is empty now
			}
		}
	}
	return errors.Join(errs...)
}
