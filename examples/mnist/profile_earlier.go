package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// stepFile are the names that memoryFiles has a pattern for.
var stepFile = regexp.MustCompile(`^step-\d+\.pb\.gz$`)

// removeEarlier removes the files of an earlier run from the folder of -memprofile, so that all
// files of these names are of one run. Other files stay.
func removeEarlier(dir string) error {
	var errs []error
	for _, pattern := range memoryFiles {
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
