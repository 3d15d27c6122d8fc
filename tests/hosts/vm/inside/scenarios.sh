# Each function is what one boot does; sourced by init.sh. Results are files below /results, which everybody may write.

groups=/sys/fs/cgroup
controllers="+cpu +memory +pids"
project=/opt/skillyard

# As systemd does: processes live in leaves, and the groups above hand controllers down.
hand_down() {
    mkdir "$groups/init.scope"
    echo 1 >"$groups/init.scope/cgroup.procs"
    echo "$controllers" >"$groups/cgroup.subtree_control"
    for slice in user.slice system.slice; do
        mkdir "$groups/$slice"
        echo "$controllers" >"$groups/$slice/cgroup.subtree_control"
    done
}

# As Delegate=yes with User= does: the directory, and the files that moving processes and handing down need.
delegate() { # directory
    mkdir "$1"
    chown tester "$1" "$1/cgroup.procs" "$1/cgroup.subtree_control" "$1/cgroup.threads"
}

python() { env PYTHONPATH="/opt/site:$project/src" PYTHONDONTWRITEBYTECODE=1 python3 "$@"; }

as_tester() { # group, command…: in that group from the start, as a service is
    (
        echo 0 >"$1/cgroup.procs"
        shift
        cd /home/tester
        exec setpriv --reuid tester --regid tester --init-groups env HOME=/home/tester USER=tester \
            PYTHONPATH="/opt/site:$project/src" PYTHONDONTWRITEBYTECODE=1 "$@"
    )
}

doctor="python3 -m skillyard doctor --json"
pytest="python3 -m pytest -q -p no:cacheprovider --timeout 600 -c $project/pyproject.toml --rootdir $project"
first="$project/tests/conformance/sandbox/test_native_first.py $project/tests/conformance/sandbox/test_native_parting.py"
suite="$pytest $project/tests/conformance/sandbox/test_native_backend.py $first --junitxml"

root() {
    hand_down
    python -m skillyard doctor --json >/results/doctor.json
    cd "$project"
    python ${suite#python3} /results/suite.xml
}

# The same of what stands on the compiled part alone, with the interpreter beside it.
root_first() {
    hand_down
    python -m skillyard doctor --json >/results/doctor.json
    cd "$project"
    python ${pytest#python3} $first --junitxml /results/suite.xml
}

# A user's service: the delegated group is above the one it runs in.
user() {
    hand_down
    delegate "$groups/user.slice/user@1000.service"
    mkdir "$groups/user.slice/user@1000.service/app.slice"
    chown tester "$groups/user.slice/user@1000.service/app.slice/cgroup.procs"
    as_tester "$groups/user.slice/user@1000.service/app.slice" $doctor >/results/doctor.json
    as_tester "$groups/user.slice/user@1000.service/app.slice" $suite /results/suite.xml
}

# What version 2 charges to nobody, as root and as a user with a delegated group.
objects="python3 -m skillyard verify --family objects --json"

root_objects() {
    hand_down
    python -m skillyard doctor --json >/results/doctor.json
    python ${objects#python3} /results/verify.json
}

user_objects() {
    hand_down
    delegate "$groups/user.slice/user@1000.service"
    mkdir "$groups/user.slice/user@1000.service/app.slice"
    chown tester "$groups/user.slice/user@1000.service/app.slice/cgroup.procs"
    as_tester "$groups/user.slice/user@1000.service/app.slice" $doctor >/results/doctor.json
    as_tester "$groups/user.slice/user@1000.service/app.slice" $objects /results/verify.json
}

# A system service with User= and Delegate=yes: it begins in the very group that it is given.
service() {
    hand_down
    group=$groups/system.slice/skillyard.service
    delegate "$group"
    as_tester "$group" $doctor >/results/doctor.json
    find "$group" -type d -printf '%P\n' >/results/groups.txt
}

# The same as root, where systemd marks the group.
root_service() {
    hand_down
    group=$groups/system.slice/skillyard.service
    mkdir "$group"
    python3 -c 'import os, sys; os.setxattr(sys.argv[1], "user.delegate", b"1")' "$group"
    (
        echo 0 >"$group/cgroup.procs"
        exec env PYTHONPATH="/opt/site:$project/src" $doctor
    ) >/results/doctor.json
    find "$group" -type d -printf '%P\n' >/results/groups.txt
}

# A user to whom nothing is delegated.
undelegated() {
    hand_down
    mkdir "$groups/user.slice/session-1.scope"
    as_tester "$groups/user.slice/session-1.scope" $doctor >/results/doctor.json
}

# Debian's switch, and the kernel's.
userns_switch() {
    hand_down
    sysctl -q kernel.unprivileged_userns_clone=0
    undelegated_doctor
}

no_userns() {
    hand_down
    sysctl -q user.max_user_namespaces=0
    undelegated_doctor
    python -m skillyard doctor --json >/results/root.json
}

undelegated_doctor() {
    mkdir "$groups/user.slice/session-1.scope"
    as_tester "$groups/user.slice/session-1.scope" $doctor >/results/doctor.json
    echo $? >/results/doctor-status.txt
}
