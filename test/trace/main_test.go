package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestScanFile_FindsEveryClaim(t *testing.T) {
	for name, tc := range map[string]struct {
		src  string
		want []proof
	}{
		"a comment above a test": {
			"// TestA does it.\n// proves: RT-1, RT-2\nfunc TestA() {}\n",
			[]proof{{"RT-1", "x.TestA", "x/a_test.go:3"}, {"RT-2", "x.TestA", "x/a_test.go:3"}},
		},
		"a comment inside a test": {
			"func TestA() {\n\t// proves: RT-1\n}\n",
			[]proof{{"RT-1", "x.TestA", "x/a_test.go:3"}},
		},
		"a comment in a block": {
			"func TestA() {\n\t/* proves: RT-1 */\n}\n",
			[]proof{{"RT-1", "x.TestA", "x/a_test.go:3"}},
		},
		"a comment behind a table row, outside every function": {
			"var rows = []int{\n\t1, // proves: RT-1\n}\n",
			[]proof{{"RT-1", "x/a_test.go:3", "x/a_test.go:3"}},
		},
		"the name of a test": {
			"func TestFieldB1_StopTakesAll() {}\nfunc TestFieldless() {}\n",
			[]proof{{"B1", "x.TestFieldB1_StopTakesAll", "x/a_test.go:2"}},
		},
		"the same claim twice counts once": {
			"// proves: RT-1\nfunc TestA() {\n\t// proves: RT-1\n}\n",
			[]proof{{"RT-1", "x.TestA", "x/a_test.go:2"}},
		},
		"a sentence behind the ids": {
			"// proves: RT-1, B2. It says, so to speak, more.\nfunc TestA() {}\n",
			[]proof{{"RT-1", "x.TestA", "x/a_test.go:2"}, {"B2", "x.TestA", "x/a_test.go:2"}},
		},
		"a range is no list of ids and stays whole, to be refused": {
			"// proves: RT-1..10\nfunc TestA() {}\n// proves: nothing much\nfunc TestB() {}\n",
			[]proof{{"RT-1..10", "x.TestA", "x/a_test.go:2"}, {"nothing much", "x.TestB", "x/a_test.go:4"}},
		},
		"a text that only talks of proofs": {
			"// This proves: nothing.\nfunc TestA() { _ = \"// proves: RT-1\" }\n",
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := scanFile("x/a_test.go", []byte("package x\n"+tc.src))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got  %v\nwant %v", got, tc.want)
			}
		})
	}
}

func TestScan_RefusesAnIDThatIsInNoList(t *testing.T) {
	dir := t.TempDir()
	src := "package x\n\n// proves: RT-1, TR-2\nfunc TestA() {}\n"
	if err := os.WriteFile(filepath.Join(dir, "a_test.go"), []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := scan(dir, map[string]bool{"RT-1": true})
	if err == nil || !strings.Contains(err.Error(), `a_test.go:3: "TR-2"`) {
		t.Fatalf("err = %v; want one that names the file, the line and TR-2", err)
	}
	proofs, err := scan(dir, map[string]bool{"RT-1": true, "TR-2": true})
	if err != nil || len(proofs["RT-1"]) != 1 {
		t.Fatalf("proofs = %v, err = %v", proofs, err)
	}
}

func TestReport_CountsPerSection(t *testing.T) {
	c, err := parseCatalogue("rows", "# comment\n\n## One\nA-1\nA-2\n\n## Two\nB-1\n")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	report(&out, c, map[string][]string{"A-2": {"x.TestB", "x.TestA"}}, true)
	want := `rows
    1 of   2  One
             A-1        -
             A-2        x.TestA x.TestB
    0 of   1  Two
             B-1        -
    1 of   3 rows proved

`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	if _, err := parseCatalogue("rows", "A-1\n"); err == nil {
		t.Error("an id before the first section was accepted")
	}
}

// The lists of this repository are well formed, and every claim in it names a row that exists.
func TestRun_OverThisRepository(t *testing.T) {
	root, err := moduleDir()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(&out, root, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"23. Runtimes contract", "of 589 rows proved", "of 204 rows proved"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("report lacks %q:\n%s", want, out.String())
		}
	}
}
