#!/bin/sh
# pid 1 of the machine: what systemd would have mounted, then the scenario, then off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root SKILLYARD_TEST_PATIENCE=5
here=/opt/skillyard/tests/hosts/vm/inside
[ -c /dev/nvme1n1 ] || mount -t devtmpfs -o nosuid,mode=755 devtmpfs /dev
exec >/dev/console 2>&1
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts -o nosuid,noexec,gid=5,mode=620 devpts /dev/pts
mount -t tmpfs -o nosuid,nodev tmpfs /dev/shm
mount -t tmpfs -o nosuid,nodev,mode=755 tmpfs /run
mount -t cgroup2 -o nosuid,nodev,noexec,nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup
mount --make-rshared /
ip link set lo up
hostname machine
mkdir -p -m 1777 /results
mkdir -p /home/tester
useradd -u 1000 -d /home/tester tester
chown tester /home/tester

scenario=$(sed 's/.*scenario=\([^ ]*\).*/\1/' /proc/cmdline)
. "$here/scenarios.sh"
"$scenario" >/results/output.txt 2>&1
echo $? >/results/status.txt

tar -C /results -cf /dev/nvme1n1 .
sync
mount -o remount,ro /
echo o >/proc/sysrq-trigger
while :; do sleep 60; done
