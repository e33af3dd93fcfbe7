//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"image"
	"image/png"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
)

// contents returns the files below a folder: a link as its target, a pipe as nothing.
func contents(t *testing.T, dir string) map[string]string {
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || d.IsDir():
		case d.Type() == fs.ModeSymlink:
			all[name], err = os.Readlink(name)
		case d.Type().IsRegular():
			var text []byte
			text, err = os.ReadFile(name)
			all[name] = string(text)
		default:
			all[name] = ""
		}
		return err
	}))
	return all
}

// TestOutputsAreRefused: outputs are refused before the training if they are inputs, are named by
// two flags, are not regular files or can't be made. No file changes.
func TestOutputsAreRefused(t *testing.T) {
	data := small(t)
	t.Chdir(t.TempDir())
	for _, dir := range []string{"folder", "prof", "other"} {
		require.NoError(t, os.Mkdir(dir, 0o700))
	}
	for _, name := range []string{"w", "prof/step-7.pb.gz", "other/trace.json"} {
		require.NoError(t, os.WriteFile(name, []byte("weights"), 0o600))
	}
	require.NoError(t, os.Link("w", "hard"))
	require.NoError(t, syscall.Mkfifo("pipe", 0o600))
	for link, to := range map[string]string{"link": "w", "dangling": "none", "way": "folder", "loop": "loop", "prof/rank-0.jsonl": "../w"} {
		require.NoError(t, os.Symlink(to, link))
	}
	before, dataBefore := contents(t, "."), contents(t, data)
	const input, own, link, special = "which would be overwritten", "want a file of its own", "is a symbolic link", "is not a regular file"
	for args, want := range map[string]string{
		"-load w -steps w":                                  input,
		"-load w -json w":                                   input,
		"-load w -save ./w":                                 input,
		"-load w -save way/../w":                            input,
		"-load hard -json w":                                input,
		"-load link -json w":                                input,
		"-load w -json link":                                input,
		"-load prof/step-7.pb.gz -memprofile prof":          input,
		"-load other/trace.json -memprofile ./other":        input,
		"-json " + data + "/train-images-idx3-ubyte":        input,
		"-json a -save ./a":                                 own,
		"-save a -resume folder/../a":                       own,
		"-json folder/a -save way/a":                        own,
		"-steps a -json " + must(filepath.Abs("a")):         own,
		"-json hard -save w":                                own,
		"-json prof/report.html -memprofile prof":           own,
		"-save prof/step-3.pb.gz -memprofile prof":          own,
		"-save new/step-3.pb.gz -memprofile ./new":          own,
		"-steps new/rank-1.jsonl -ranks 2 -rankprofile new": own,
		"-save link":                                        link,
		"-json dangling":                                    link,
		"-steps link":                                       link,
		"-resume dangling":                                  link,
		"-json loop":                                        link,
		"-rankprofile prof":                                 link,
		"-save /dev/null":                                   special,
		"-resume pipe":                                      special,
		"-save -":                                           "want the name of a file",
		"-trace stdout -json -":                             "-json - and -trace stdout go to the standard output",
		"-json - -steps /dev/stdout":                        "-json - and -steps /dev/stdout go to the standard output",
		"-json folder":                                      "is a directory",
		"-json w/x":                                         "there is no folder w",
		"-memprofile w":                                     "not a directory",
		"-save /proc/w":                                     "-save: open /proc",
		"-steps none/s":                                     "there is no folder none",
		"-memprofile folder/../prof/step-7.pb.gz":           "not a directory",
	} {
		t.Run(args, func(t *testing.T) {
			var out, errs bytes.Buffer
			require.Equal(t, 1, run(t.Context(), append([]string{"-data", data, "-batch", "10", "-model", "tiny"}, strings.Fields(args)...), &out, &errs))
			require.Contains(t, errs.String(), want)
			require.Equal(t, 1, strings.Count(errs.String(), "\n"), errs.String())
			require.Empty(t, out.String(), "nothing was trained")
			require.Equal(t, before, contents(t, "."))
			require.Equal(t, dataBefore, contents(t, data))
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestOutputsBesideInputs: outputs of all flags may be in one folder, and replace those of an
// earlier run.
func TestOutputsBesideInputs(t *testing.T) {
	data := small(t)
	t.Chdir(t.TempDir())
	var out, errs bytes.Buffer
	args := []string{"-data", data, "-batch", "10", "-epochs", "1", "-model", "tiny", "-memprofile", "m", "-steps", "m/steps", "-save", "m/w", "-resume", "m/r", "-json", "m/j"}
	require.Zero(t, run(t.Context(), args, &out, &errs), errs.String())
	require.Zero(t, run(t.Context(), args, &out, &errs), "again: %s", errs.String())
	for name := range contents(t, "m") {
		require.NotContains(t, name, "/.", "nothing is left half-written")
	}
	out.Reset()
	require.Zero(t, run(t.Context(), []string{"-data", data, "-batch", "10", "-epochs", "1", "-model", "tiny", "-load", "m/w", "-json", "-"}, &out, &errs), errs.String())
	var r result
	require.NoError(t, json.Unmarshal(out.Bytes(), &r), "it is alone there: %s", out.String())
	require.Equal(t, 1, r.Epochs)
	require.Contains(t, errs.String(), "epoch 1/1 ")
	require.NoFileExists(t, "-")
}

// TestStandardOutputThatFails: a full standard output is one line of error at the end, and all
// files are written.
func TestStandardOutputThatFails(t *testing.T) {
	data := small(t)
	t.Chdir(t.TempDir())
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no /dev/full")
	}
	defer full.Close()
	var errs bytes.Buffer
	args := []string{"-data", data, "-batch", "10", "-epochs", "1", "-model", "tiny", "-trace", "stdout", "-json", "j", "-save", "w", "-steps", "s", "-memprofile", "m"}
	require.Equal(t, 1, run(t.Context(), args, full, &errs))
	require.True(t, strings.HasSuffix(errs.String(), "\nmnist: the standard output: write /dev/full: no space left on device\n"), errs.String())
	for _, name := range []string{"j", "w", "s", "m/report.html"} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Positive(t, info.Size(), name)
	}
	errs.Reset()
	picture := new(bytes.Buffer)
	require.NoError(t, png.Encode(picture, image.NewRGBA(image.Rect(0, 0, digits.Side, digits.Side))))
	require.NoError(t, os.WriteFile("p.png", picture.Bytes(), 0o600))
	require.Equal(t, 1, run(t.Context(), []string{"-load", "w", "-model", "tiny", "-predict", "p.png"}, full, &errs))
	require.Equal(t, "mnist: the standard output: write /dev/full: no space left on device\n", errs.String())
}

// TestOutputThatFails: if an output fails after the training, the others are still written.
func TestOutputThatFails(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full")
	}
	data := small(t)
	t.Chdir(t.TempDir())
	var out, errs bytes.Buffer
	require.Equal(t, 1, run(t.Context(), []string{"-data", data, "-batch", "10", "-epochs", "1", "-model", "tiny", "-steps", "/dev/full", "-json", "j", "-save", "w"}, &out, &errs))
	require.Equal(t, "mnist: -steps: write /dev/full: no space left on device\n", errs.String())
	require.FileExists(t, "j")
	require.FileExists(t, "w")
}

// TestReaderThatLeaves: the training continues if the reader of its standard output exits.
func TestReaderThatLeaves(t *testing.T) {
	weights := filepath.Join(t.TempDir(), "w")
	args := []string{"-data", small(t), "-batch", "2", "-epochs", "20", "-model", "tiny", "-save", weights}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childArgs+"="+strings.Join(args, "\n"))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(io.LimitReader(stdout, 1)).ReadByte()
	require.NoError(t, err)
	require.NoError(t, stdout.Close())
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 1, exit.ExitCode(), exit.String())
	require.Contains(t, errs.String(), "mnist: the standard output: write")
	require.Equal(t, 1, strings.Count(errs.String(), "\n"), errs.String())
	require.FileExists(t, weights)
}
