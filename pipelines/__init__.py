"""The commands, and what they do with events, options and results.

The packages from the top down. Each imports only from those below it.

- `commands`: the commands, a module each.
- `audit`: what an attacker can prove of a configuration: worlds, guesses, findings.
- `state_runs`: runs that keep their state in a folder, pass by pass.
- `jobs`: a run from events to results, here or on a runner.
- `in_memory`: `sv.release` and the other functions.
- `evaluation`: mechanisms side by side, and the page of a comparison.
- `outputs`: what the results of a plan are, and where they go.
- `runners`: this process, or a runner of Beam and its servers.
- `cards`: what was promised, and its check against ledger and releases.
- `monitoring`: status, metrics and the live page of a stream.
- `plans`: what options ask for, as plans of the engine.
- `options`: every option, how its value is read, and what is checked.
- `reports`: summaries, and the page of a release with its charts.
- `sample_data`: streams, records and flights by name.
- `pages`: what all pages are made with.
- `console`: lines, progress and errors for a person.

`main` is the command line, `flex` the templates of Dataflow, `yaml` the transforms of Beam YAML.
"""
